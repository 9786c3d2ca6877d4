"""The tables of a participant's journal. All of their SQL is in `journal`."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

VERSION: Final = 1
TAG: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""The number that a branch's rows carry."""


class Tables:
    """The journal of one resource: `<name>_tpc_...`. Versioned by `schema`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.metadata = m = sa.MetaData()
        self.schema = sa.Table(
            f"{name}_tpc_schema",
            m,
            sa.Column("version", sa.Integer, nullable=False),
            sa.Column("journal", sa.String(32), nullable=False),
        )
        self.application = sa.Table(
            f"{name}_tpc_application",
            m,
            sa.Column("application", sa.String(40), primary_key=True),
            sa.Column("watermark", sa.BigInteger),
            # The name by which it calls us: of its own configuration.
            sa.Column("participant", sa.String(40), nullable=False),
        )
        self.transaction = sa.Table(
            f"{name}_tpc_transaction",
            m,
            sa.Column("application", sa.String(40), primary_key=True),
            sa.Column("batch", sa.BigInteger, primary_key=True),
            sa.Column("attempt", sa.Integer, primary_key=True),
            sa.Column("seal", sa.String(9)),
            sa.Column("resolved_because", sa.Text),
            sa.Column("carrier", sa.Text, nullable=False),
        )
        self.branch = sa.Table(
            f"{name}_tpc_branch",
            m,
            sa.Column("tag", TAG, primary_key=True),
            sa.Column("application", sa.String(40), nullable=False),
            sa.Column("batch", sa.BigInteger, nullable=False),
            sa.Column("attempt", sa.Integer, nullable=False),
            sa.Column("partition", sa.BigInteger, nullable=False),
            sa.Column("task_attempt", sa.BigInteger, nullable=False),
            sa.Column("state", sa.String(9), nullable=False),
            sa.Column("rows", sa.BigInteger, nullable=False),
            sa.Column("digest", sa.String(64), nullable=False),
            sa.Column("writer", sa.BigInteger),
            sa.Column("since", sa.Float(53), nullable=False),
            sa.Column("sealed", sa.Float(53)),
            sa.UniqueConstraint(
                "application", "batch", "attempt", "partition", "task_attempt"
            ),
            sqlite_autoincrement=True,  # rows outlive the journal: no tag comes twice
        )
        open_branches = sa.text("sealed IS NULL")
        sa.Index(
            f"{name}_tpc_open",
            self.branch.c.tag,
            sqlite_where=open_branches,
            postgresql_where=open_branches,
        )
        # Tags that readers don't see: prepared, or aborted with `doomed` rows left.
        self.hidden = sa.Table(
            f"{name}_tpc_hidden",
            m,
            sa.Column("tag", TAG, primary_key=True, autoincrement=False),
            sa.Column("doomed", sa.BigInteger),
        )
