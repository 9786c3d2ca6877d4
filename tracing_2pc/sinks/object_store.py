"""A folder of an S3 bucket: who logs in, and its files as pyarrow has them."""

from __future__ import annotations

import contextlib
import os
import re
import urllib.parse
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.settings import (
    is_reference,
    raise_if_literal,
    read_secret,
    without_secrets,
)

_URL: Final = re.compile(r"s3a?://", re.IGNORECASE)

_KEY: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_REGION: Final = "AWS_REGION"
_ENDPOINT: Final = "AWS_ENDPOINT_URL"
PROPERTIES: Final = (*_KEY, _REGION, _ENDPOINT)
"""What a sink may be given of a store; each is also read from the environment."""

AT_ONCE: Final = 8
"""Requests that are under way at one moment."""

_THERE: Final = (409, 412)
"""What a conditional put of a key is answered that is there, or is just being put."""


def is_object_store(folder: str) -> bool:
    """Whether a folder is one of an S3 bucket."""
    return _URL.match(folder) is not None


class S3Folder:
    """A folder of a bucket, without a login.

    That is looked up where it is used: by boto3's chain, or by the references that the
    properties have. All three clients (boto3, pyarrow, deltalake) are given the same.

    Args:
        url: `s3://bucket/folder`.
        properties: some of `PROPERTIES`; of secrets references only.

    Raises:
        ConfigurationError: no such address, an unknown property, or a secret in either.
    """

    def __init__(self, url: str, properties: Mapping[str, str]) -> None:
        parts = urllib.parse.urlsplit(url)
        self.bucket, self.prefix = parts.netloc, parts.path.strip("/")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ConfigurationError(
                "an address of S3 is s3://bucket/folder and nothing else: a login is "
                "looked up as boto3 does, or is given in properties, by reference"
            )
        if not self.bucket or not self.prefix:
            raise ConfigurationError(f"{url!r}: expected s3://bucket/folder")
        for name in properties:
            if name not in PROPERTIES:
                raise ConfigurationError(
                    f"properties: {name!r}: one of {', '.join(PROPERTIES)}"
                )
        raise_if_literal(
            properties, "nothing, and the login is looked up as boto3 does"
        )
        self._properties = dict(properties)
        self._session: tuple[int, Any] | None = None  # of a process
        self._files: tuple[Any, Any] | None = None  # of a process and login

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only this process has."""
        return {**self.__dict__, "_session": None, "_files": None}

    @property
    def files(self) -> Any:
        """Its files, by their path in it."""
        from pyarrow import fs

        key, region, endpoint = login = self._login()
        if self._files is None or self._files[0] != (os.getpid(), login):
            id_, secret, token = key
            store = fs.S3FileSystem(
                access_key=id_,
                secret_key=secret,
                session_token=token,
                region=region,
                endpoint_override=endpoint,
                allow_delayed_open=True,  # a small file is one request
            )
            below = fs.SubTreeFileSystem(f"{self.bucket}/{self.prefix}", store)
            self._files = (os.getpid(), login), below
        return self._files[1]

    def options(self) -> dict[str, str]:
        """Return what deltalake calls the options of a storage."""
        key, region, endpoint = self._login()
        options = {name: v for name, v in zip(_KEY, key, strict=True) if v}
        options |= {_REGION: region, "AWS_CONDITIONAL_PUT": "etag"}
        if endpoint:
            plain = str(endpoint.startswith("http:")).lower()
            options |= {_ENDPOINT: endpoint, "AWS_ALLOW_HTTP": plain}
        return options

    def raise_if_careless(self, folder: str) -> None:
        """Put one key twice, where nothing is: the second time it must be refused.

        Raises:
            ConfigurationError: it was not, or the bucket cannot be written.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        at = {"Bucket": self.bucket, "Key": f"{self.prefix}/{folder}/{uuid.uuid4()}"}
        put = 0
        with contextlib.closing(self._client()) as client:
            try:
                for _ in range(2):
                    try:
                        client.put_object(**at, Body=b"", IfNoneMatch="*")
                        put += 1
                    except ClientError as error:
                        about = error.response["ResponseMetadata"]
                        if about["HTTPStatusCode"] not in _THERE:
                            raise
            except (BotoCoreError, ClientError) as error:
                raise ConfigurationError(
                    f"{self} cannot be written: {line_of(error)}"
                ) from None
            finally:
                with contextlib.suppress(BotoCoreError, ClientError):
                    client.delete_object(**at)
        if put == 2:
            raise ConfigurationError(
                f"{self}: this store has let two conditional puts of one object "
                "through (If-None-Match: *), so one commit of the table could replace "
                "another: take a store that refuses the second"
            )

    def _client(self) -> Any:
        from botocore.config import Config

        (id_, secret, token), region, endpoint = self._login()
        own = {"s3": {"addressing_style": "path"}} if endpoint else {}
        return self._open_session().client(
            "s3",
            aws_access_key_id=id_,
            aws_secret_access_key=secret,
            aws_session_token=token,
            region_name=region,
            endpoint_url=endpoint,
            config=Config(request_checksum_calculation="when_required", **own),
        )

    def _login(self) -> tuple[tuple[str, str, str | None], str, str | None]:
        """Return key, region and endpoint, as they are now: keys may be short-lived."""
        session, given = self._open_session(), self._properties
        if _KEY[0] in given:
            id_, secret, token = (read_property(n, given.get(n)) for n in _KEY)
        else:
            id_, secret, token = self._found(session)
        if not id_ or not secret:
            raise ConfigurationError(
                f"{self}: no login: give one where boto3 looks (a role, "
                f"AWS_ACCESS_KEY_ID, ~/.aws), or {_KEY[0]} and {_KEY[1]} in properties"
            )
        endpoint = read_property(_ENDPOINT, given.get(_ENDPOINT)) or next(
            filter(None, map(os.environ.get, (f"{_ENDPOINT}_S3", _ENDPOINT))), None
        )
        region = (
            read_property(_REGION, given.get(_REGION))
            or os.environ.get(_REGION)
            or session.region_name
            or (endpoint and "us-east-1")
        )
        if not region:
            raise ConfigurationError(f"{self}: set {_REGION}, the bucket's region")
        return (id_, secret, token), region, endpoint

    def _found(self, session: Any) -> tuple[str | None, str | None, str | None]:
        """Return what boto3's chain finds."""
        from botocore.exceptions import BotoCoreError

        try:
            if (login := session.get_credentials()) is None:
                return None, None, None
            key = login.get_frozen_credentials()
        except BotoCoreError as error:
            raise ConfigurationError(f"{self}: {line_of(error)}") from None
        return key.access_key, key.secret_key, key.token

    def _open_session(self) -> Any:
        try:
            import boto3
        except ModuleNotFoundError:
            raise ConfigurationError(
                f"{self} needs boto3: pip install 'tracing-2pc[delta-s3]'"
            ) from None
        if self._session is None or self._session[0] != os.getpid():
            self._session = os.getpid(), boto3.Session()
        return self._session[1]


def read_property(name: str, value: str | None) -> str | None:
    """Return what a property of a store is, or refers to."""
    if value is None or not is_reference(value):
        return value
    return read_secret(value, f"properties: {name}")


def line_of(error: BaseException) -> str:
    """Return what an error of a store says, on one line and without secrets."""
    text = re.sub(r"\x1b\[\d+m|↳", "", without_secrets(str(error)))
    return " ".join(text.split()) or type(error).__name__


# --- files, of any file system of pyarrow's ----------------------------------------


def sizes_of(files: Any, paths: Sequence[str]) -> list[int | None]:
    """Return the bytes that files have; None for one that is not there."""
    infos = files.get_file_info(list(paths))
    return [info.size if info.is_file else None for info in infos]


def names_in(files: Any, folder: str) -> list[str]:
    """Return the names in a folder; there are none if it is not there."""
    from pyarrow import fs

    selector = fs.FileSelector(folder, allow_not_found=True)
    return sorted(info.base_name for info in files.get_file_info(selector))


def remove(files: Any, paths: Iterable[str]) -> None:
    """Remove files; one that is not there is removed."""

    def remove_one(path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            files.delete_file(path)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(remove_one, paths):
            pass
