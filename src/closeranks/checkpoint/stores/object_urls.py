"""From the URL of an object store to its client; credentials come from the environment, never from the URL."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from closeranks.checkpoint.problems import StoreRefused
from closeranks.checkpoint.stores.keys import checked_key

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

    Client = AzureStore | GCSStore | S3Store

# Options of a URL by scheme, with the client's names for them.
OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "s3": {
        "endpoint": "endpoint",
        "region": "region",
        "request_payer": "request_payer",
        "sse": "server_side_encryption",
        "kms_key_id": "sse_kms_key_id",
        "skip_signature": "skip_signature",
        "virtual_hosted": "virtual_hosted_style_request",
    },
    "gs": {"endpoint": "base_url", "skip_signature": "skip_signature"},
    "az": {
        "account": "account_name",
        "endpoint": "endpoint",
        "emulator": "use_emulator",
        "skip_signature": "skip_signature",
    },
}
REQUEST_S: Final = 60.0  # for one request, of which the largest carries 16 MiB
CONNECT_S: Final = 5.0
RETRIES: Final = 3  # of one request, by the client: what it cannot know to be harmless it leaves to us


class Place(NamedTuple):
    """Where objects go."""

    scheme: str
    bucket: str
    prefix: str  # without slashes at its ends; may be empty
    options: Mapping[str, str]  # of the client
    url: str  # for people


def parse(text: str) -> Place:
    """The place that ``scheme://bucket/prefix?option=value`` names.

    Raises:
        StoreRefused: it names none; which part is wrong is said.
    """
    parts = urlsplit(text)
    known = OPTIONS[parts.scheme]
    if not parts.netloc or "@" in parts.netloc or parts.fragment:
        # What stands before an "@" may be a secret and is not repeated.
        raise StoreRefused(
            f"--store {parts.scheme}://...: expected {parts.scheme}://BUCKET/PREFIX, got no bucket, a user name or a"
            " '#'; credentials come from the environment"
        )
    prefix = parts.path.strip("/")
    if prefix:
        checked_key(prefix.lower(), f"{parts.scheme}://{parts.netloc}")
    options = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "credentials come from the environment"
            raise StoreRefused(
                f"--store {parts.scheme}://{parts.netloc}: expected options among {', '.join(sorted(known))}, got"
                f" {name!r}; {hint}"
            )
        options[known[name]] = value
    url = f"{parts.scheme}://{parts.netloc}" + (f"/{prefix}" if prefix else "")
    return Place(parts.scheme, parts.netloc, prefix, options, url)


def connect(place: Place) -> Client:
    """The client for the place; nothing is sent yet.

    Raises:
        StoreRefused: the client is not installed, or does not accept the options.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise StoreRefused(
            f"{place.url}: expected the package obstore, got none installed; run: pip install 'closeranks[objects]'"
        ) from error
    common: dict[str, Any] = {
        "prefix": place.prefix or None,
        "client_options": {
            "timeout": timedelta(seconds=REQUEST_S),
            "connect_timeout": timedelta(seconds=CONNECT_S),
            # Asked for by whoever wrote http:// there, for example a server on the cluster's own network.
            **({"allow_http": True} if "http://" in str(place.options) or "use_emulator" in place.options else {}),
        },
        "retry_config": {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=REQUEST_S)},
        **place.options,
    }
    try:
        if place.scheme == "s3":
            return S3Store(place.bucket, **common)
        if place.scheme == "gs":
            return GCSStore(place.bucket, **common)
        return AzureStore(place.bucket, **common)
    except (BaseError, TypeError, ValueError) as error:
        said = str(error).splitlines()[0]
        hint = (
            "write az://CONTAINER/PREFIX?account=NAME, or set AZURE_STORAGE_ACCOUNT_NAME; " if "ccount" in said else ""
        )
        raise StoreRefused(
            f"{place.url}: expected options and credentials that the client accepts, got: {said}; {hint}see its"
            " environment variables (AWS_..., GOOGLE_..., AZURE_...)"
        ) from error
