"""``[admin]``. Pure."""

from __future__ import annotations

import msgspec


class AdminSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[admin]``. Without a port there is no admin API."""

    host: str = "127.0.0.1"
    port: int | None = None
    token_file: str = ""  # empty: beside the configuration file, and made if it is not there
