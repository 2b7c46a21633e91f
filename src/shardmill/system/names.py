"""Paths and URLs → how they may be shown and stored: without credentials, control characters or broken UTF-8."""

import os
import re
from pathlib import Path
from urllib.parse import unquote_plus, urlsplit, urlunsplit

# A query with one of these opens a door: signed URLs of S3, GCS, Azure and CloudFront, tokens, codes and logins. The
# short ones are so only as a whole word: "code" is one, "encoding" is not.
_SECRET = re.compile(
    r"sig|token|key|secret|credential|auth|pass|expires|policy|session|jwt|hmac|pwd|cookie|login|ticket|access|^x-(amz|goog)-"
    r"|(?<![a-z])(?:pw|pin|otp|code|sid|user|nonce|bearer|cert|s[vteprk]|spr|sip|ske|sks)(?![a-z])",
    re.IGNORECASE,
)
_JWT = re.compile(r"ey[\w-]+\.[\w-]+")
_LONG_VALUE = 20  # nobody types a value that long; whatever it is called, it may be a secret
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_USER = re.compile(r"(?<=://)[^/?#]*@")


def show(path: str | Path) -> str:
    """A path as it may be printed: names come from strangers, and may hold terminal escapes or broken UTF-8."""
    name = os.fsdecode(path)
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in (without_secrets(name) if is_url(name) else name))


def is_url(name: str) -> bool:
    return _URL.match(name) is not None


def without_secrets(url: str) -> str:
    """The URL without user name and password; one of the web also without its query if that may hold a secret."""
    url = _USER.sub("", url)
    if not url.lower().startswith(("http://", "https://")):  # elsewhere ? and # are letters of a name
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return re.split("[?#]", url)[0]
    secret = any(map(_opens_a_door, re.split("[&;]", parts.query)))
    return urlunsplit(parts._replace(query="" if secret else parts.query, fragment=""))


def _opens_a_door(setting: str) -> bool:
    """Whether a part of a query may be a secret: by its name or by its value, or because it has only one of them."""
    name, equals, value = map(unquote_plus, setting.partition("="))
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name)
    return not equals or len(value) >= _LONG_VALUE or bool(_SECRET.search(words) or _JWT.match(value))
