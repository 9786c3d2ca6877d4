"""Where the file of a decision log may be."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.texts import texts

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.store import open_log
from tracing_2pc.store.engines import sqlite
from tracing_2pc.store.engines.sqlite import check_disk

TEXTS = texts("component")

LOCAL = "25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"
TABLE = "\n".join(
    (
        LOCAL,
        "30 25 0:40 / /nfs rw,relatime shared:9 - nfs4 server:/export rw,vers=4.2",
        "31 25 0:41 / /smb rw,relatime - cifs //server/share rw",
        "32 30 8:2 / /nfs/disk rw - ext4 /dev/sdb1 rw",
        r"33 25 0:42 / /with\040space rw - nfs server:/export rw",
        "34 25 0:43 / /auto rw - autofs systemd-1 rw",
        "35 25 0:44 / /auto rw - smb3 //server/share rw",
    )
)


@pytest.fixture
def mounts(tmp_path) -> Path:
    """A table of mounts."""
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    return path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/nfs/state/decisions.db", "nfs4 at /nfs"),
        ("/smb/decisions.db", "cifs at /smb"),
        ("/with space/decisions.db", "nfs at /with space"),
        ("/auto/decisions.db", "smb3 at /auto"),
    ],
)
def test_a_network_file_system_is_refused(path, kind, mounts):
    """It says which it is, where, and what to use instead."""
    with pytest.raises(ConfigurationError) as refused:
        check_disk(Path(path), "log", mounts)
    text = str(refused.value)
    assert f"log: {path} is on a network file system ({kind})" in text
    assert "postgresql://user@host/database" in text
    assert "local disk" in text


@pytest.mark.parametrize("path", ["/state/d.db", "/nfs/disk/d.db", "/nfsish/d.db"])
def test_a_disk_is_taken(path, mounts):
    """Also one that is mounted below a network file system, or named like one."""
    check_disk(Path(path), "log", mounts)


def test_without_a_table_of_mounts_nothing_is_refused(tmp_path):
    """Other systems than Linux have none."""
    check_disk(Path("/nfs/decisions.db"), "log", tmp_path / "nothing")


def test_a_log_is_not_opened_on_a_network_file_system(tmp_path, monkeypatch):
    """By no one, whether it is there already or not; and no folder is made there."""
    table = tmp_path / "mountinfo"
    table.write_text(f"{LOCAL}\n36 25 0:45 / {tmp_path}/share rw - nfs4 server:/x rw")
    monkeypatch.setattr(
        sqlite, "check_disk", lambda path, setting: check_disk(path, setting, table)
    )
    share = tmp_path / "share"
    with pytest.raises(ConfigurationError, match=TEXTS["network file system"]):
        open_log(f"sqlite:///{share}/d.db")
    assert not share.exists()
    share.mkdir()
    (share / "d.db").touch()
    with pytest.raises(ConfigurationError, match=TEXTS["network file system"]):
        open_log(f"sqlite:///{share}/d.db", must_exist=True)
    open_log(f"sqlite:///{tmp_path}/here/d.db").close()
