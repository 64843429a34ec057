"""What the errors of an object store's client mean, in words a person can act on."""

from __future__ import annotations

import re
from typing import Final

from closeranks.checkpoint.problems import StoreProblem

_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_QUERY: Final = re.compile(r"\?[^\s>\"]*")  # may hold a signature
_CODE: Final = re.compile(r"<Code>([^<]{1,80})</Code>")
_TRANSIENT_STATUS: Final = frozenset({408, 409, 423, 425, 429})
_SERVER_ERRORS: Final = 500
_SHOWN_CHARS: Final = 300
_CREDENTIALS: Final = "check the credentials in the environment (AWS_..., GOOGLE_..., AZURE_...) and"


def is_no_bucket(error: Exception) -> bool:
    """Whether the bucket is missing, which the client tells as a missing object."""
    return any(text in str(error) for text in _NO_BUCKET)


def problem_of(error: Exception, doing: str, *, is_write: bool = False) -> StoreProblem:
    """An error of the client as a problem of the store; ``doing`` says where and what."""
    text = str(error)
    found = _STATUS.search(text)
    status = int(found[1]) if found else None
    expected, way_out = "an answer without an error", "see the store's status page or log"
    transient = status is None or status >= _SERVER_ERRORS or status in _TRANSIENT_STATUS
    if is_no_bucket(error):
        expected, way_out, transient = "a bucket", "create the bucket, or correct its name in --store", False
    elif status in (401, 403):
        expected, way_out = "permission", f"{_CREDENTIALS} what they may do in this bucket (get, put, list, delete)"
    elif status in (301, 307, 400):
        way_out = "check the region and the endpoint (--store s3://BUCKET/PREFIX?region=...&endpoint=...)"
    elif status in (405, 501):
        way_out = "this server lacks a request that is needed; choose another --store"
    elif (
        "redential" in text or "169.254.169.254" in text or "metadata.google" in text
    ):  # asked the machine for its role
        expected, way_out = "credentials", f"{_CREDENTIALS} the instance's role"
    elif transient:
        way_out = "it is tried again; check that the endpoint can be reached from this node"
    # A request that no connection was made for cannot have been carried out; neither can one that was refused.
    unsent = "kind: Connect" in text or "dns error" in text
    doubtful = is_write and transient and not unsent and status not in _TRANSIENT_STATUS
    return StoreProblem(
        f"{doing}: expected {expected}, got {_shown(text)}; {way_out}", transient=transient, doubtful=doubtful
    )


def _shown(text: str) -> str:
    code = _CODE.search(text)
    line = _QUERY.sub("", text.splitlines()[0] if text else "an error without a message")
    line = line.split("<?xml")[0].strip().rstrip(":")[:_SHOWN_CHARS]
    return f"{line} ({code[1]})" if code else line
