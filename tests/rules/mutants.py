"""The table: a rule, how it is taken out, and the test that turns red. Add here.

An edit that more than one mutation needs has a name: guards behind each other are
taken out alone, and together.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from rules.copies import Edit

RULES: Final = range(1, 21)


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """A rule taken out.

    Args:
        rule: its number in ARCHITECTURE.md, or a few words for one without.
        words: what is wrong then.
        test: the one that must turn red, below `tests/`.
        edits: of the source, below `tracing_2pc/`.
    """

    rule: int | str
    words: str
    test: str
    edits: tuple[Edit, ...]

    @property
    def node(self) -> str:
        """The test as pytest calls it."""
        return f"tests/{self.test}"


def edit(file: str, old: str, new: str) -> Edit:
    """Make an edit of a file of the package."""
    return Edit(f"tracing_2pc/{file}", old, new)


COORDINATOR = "protocol/coordinator.py"
DELIVERY = "protocol/delivery.py"
RECOVERY = "protocol/recovery.py"
ASKING = "protocol/asking.py"
DATABASE = "store/database.py"
LOG = "store/decision_log.py"
STATEMENTS = "store/statements.py"
RECORD_RULES = "store/rules.py"
ANSWERS = "participant/answers.py"
JOURNAL = "participant/journal.py"
JOURNALLED = "participant/resources/journalled.py"
PREPARED = "participant/resources/prepared_transactions.py"
PREPARED_JOURNAL = "participant/resources/prepared_journal.py"
POSTGRESQL = "participant/postgresql.py"
SESSION = "store/session.py"
SQLITE = "participant/sqlite.py"
HTTP = "transports/http.py"
EVIDENCE = "protocol/evidence.py"
OBSERVATION = "operations/observation.py"

# --- edits with a name ---------------------------------------------------------------

NO_TOMBSTONE = edit(
    ANSWERS,
    "    seal = outcome if seen.seal is None else None\n",
    "    seal = outcome if seen.seal is None and seen.recorded else None\n",
)
NOT_LISTED = edit(
    JOURNAL,
    ".where(b.c.sealed.is_(None), b.c.tag > after)\n        )\n        if application",
    '.where(b.c.state != "prepared", b.c.sealed.is_(None), b.c.tag > after)\n'
    "        )\n        if application",
)
BEGIN_ABORTS_NOBODY = edit(
    LOG,
    "                for record in active\n            )",
    "                for record in active[:0]\n            )",
)
OLDER_MAY_COMMIT = edit(
    STATEMENTS,
    'sa.or_(transaction.c.attempt > sa.bindparam("than_attempt"), _COMMIT)',
    "_COMMIT",
)
DECIDED_AGAIN = edit(
    LOG,
    "            if record.state is not TransactionState.ACTIVE:\n"
    "                return record\n            kept",
    "            kept",
)
ABORTING_MAY_COMMIT = edit(
    "states.py",
    "    (T.COMMITTING, E.FINISH): T.COMMITTED,\n",
    "    (T.COMMITTING, E.FINISH): T.COMMITTED,\n"
    "    (T.ABORTING, E.DECIDE_COMMIT): T.COMMITTING,\n",
)
FINISH_UNHEARD = edit(RECORD_RULES, "    if record.pending:\n", "    if False:\n")
DELIVERED_UNHEARD = edit(
    DELIVERY, "            if not silent:\n", "            if True:\n"
)
NEWEST_FORGOTTEN = edit(
    STATEMENTS,
    "first_to_stay.scalar_subquery(), _NEWEST_BEGUN.scalar_subquery()\n",
    "first_to_stay.scalar_subquery(), _NEWEST_BEGUN.scalar_subquery() + 1\n",
)
BEGIN_BELOW_WATERMARK = edit(
    RECORD_RULES,
    "    if standing.watermark is not None and batch <= standing.watermark:\n"
    "        passed",
    "    if False:\n        passed",
)
DECIDE_BELOW_WATERMARK = edit(
    RECORD_RULES,
    "    return record.watermark is not None and record.id.batch <= record.watermark\n",
    "    return False\n",
)
NO_UNIQUE_COMMIT = edit("store/schema.py", "    unique=True,\n", "    unique=False,\n")
NO_REPLAY = edit(
    LOG,
    "            if replayed := records.load(connection, sql.COMMITTED, of):\n",
    "            if replayed := records.load(connection, sql.COMMITTED, of)[:0]:\n",
)
COMMITTED_IS_NO_RIVAL = edit(
    STATEMENTS,
    'sa.or_(transaction.c.attempt > sa.bindparam("than_attempt"), _COMMIT)',
    'transaction.c.attempt > sa.bindparam("than_attempt")',
)
COMMITS_ANOTHER_ATTEMPT = edit(
    ANSWERS,
    "    if seen.seal is None and seen.committed:\n",
    "    if False:\n",
)
PREPARES_ANOTHER_ATTEMPT = edit(
    ANSWERS,
    "    if seen.committed:\n        return _no(seen, 409, COMMITTED, f",
    "    if False:\n        return _no(seen, 409, COMMITTED, f",
)
NO_RECOVERY_AT_START = edit(
    COORDINATOR, "delivered = self.recover()\n", "delivered = set()\n"
)
REPLAY_NOT_DELIVERED = edit(
    COORDINATOR,
    "                self.deliver(record)\n            return False",
    "                pass\n            return False",
)

# --- the table -----------------------------------------------------------------------

LOG_TEST = "contract/test_decision_log.py::"
SQL_TEST = "contract/test_decision_log_sql.py::"
ANSWERS_TEST = "contract/test_answers.py::"
COORDINATOR_TEST = "unit/test_coordinator.py::"
RECOVERY_TEST = "unit/test_recovery.py::"
TRANSPORT_TEST = "unit/test_http_transport.py::"
PREPARED_TEST = "contract/test_prepared_transactions.py::"
WATCHER_TEST = "contract/test_watcher.py::"
LEAVE_ALONE_TEST = "unit/test_diagnosis.py::test_any_leave_alone_wins"

MUTANTS: Final = (
    Mutant(
        1,
        "decide takes a vote to abort",
        LOG_TEST + "test_a_commit_needs_every_vote[sqlite-abort]",
        (
            edit(
                "store/receipts.py",
                "not in (Vote.COMMIT, Vote.READ_ONLY)",
                "not in (Vote.COMMIT, Vote.READ_ONLY, Vote.ABORT)",
            ),
        ),
    ),
    Mutant(
        1,
        "decide takes rows that nobody voted for",
        LOG_TEST + "test_a_commit_needs_every_vote[sqlite-silence]",
        (
            edit(
                "store/receipts.py",
                "if receipt.rows and not receipt.votes:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        1,
        "decide takes two receipts for a partition",
        LOG_TEST + "test_a_commit_needs_every_vote[sqlite-twin]",
        (
            edit(
                "store/receipts.py",
                "(key := (participant, receipt.branch.partition)) in seen",
                "(key := (participant, receipt.branch)) in seen",
            ),
        ),
    ),
    Mutant(
        1,
        "the driver takes receipts that lack a vote",
        "unit/test_tasks.py::test_a_receipt_without_everybodys_vote_is_refused"
        "[one missing]",
        (
            edit(
                "spark/tasks.py",
                "set(r.votes) != expected for r in receipts",
                "not r.votes for r in receipts",
            ),
        ),
    ),
    Mutant(
        1,
        "the driver takes two receipts for a partition",
        "unit/test_tasks.py::test_two_receipts_for_a_partition_are_refused",
        (
            edit(
                "spark/tasks.py",
                "len(set(partitions)) != len(partitions) or any",
                "any",
            ),
        ),
    ),
    Mutant(
        1,
        "an answer that does not vote commit counts as a vote",
        TRANSPORT_TEST + "test_rows_without_a_vote_to_commit_are_refused[read_only]",
        (edit(HTTP, 'if item.get("vote") != Vote.COMMIT:', "if False:"),),
    ),
    Mutant(
        2,
        "a commit leaves before it is decided",
        COORDINATOR_TEST + "test_a_log_that_stays_silent_is_not_taken_for_a_no",
        (
            edit(
                COORDINATOR,
                "                record = self.decide(record, receipts)\n",
                "                self.delivery._ask_all(dataclasses.replace(record,\n"
                "                    decision=Decision.COMMIT, receipts=receipts))\n"
                "                record = self.decide(record, receipts)\n",
            ),
        ),
    ),
    Mutant(
        2,
        "SQLite: decide does not flush (synchronous NORMAL for FULL)",
        SQL_TEST + "test_begin_and_decide_wait_for_the_disk[sqlite]",
        (
            edit(
                DATABASE, '_sqlite_engine(url, "FULL")', '_sqlite_engine(url, "NORMAL")'
            ),
        ),
    ),
    Mutant(
        2,
        "PostgreSQL: decide does not flush (synchronous_commit off)",
        SQL_TEST + "test_begin_and_decide_wait_for_the_disk[postgresql]",
        (
            edit(
                DATABASE,
                "execution_options=flushed,",
                "execution_options=unflushed,",
            ),
        ),
    ),
    Mutant(
        2,
        "PostgreSQL: a role that does not flush is not overruled",
        SQL_TEST + "test_a_role_that_does_not_flush_is_overruled",
        (
            edit(
                SESSION,
                "WHEN 'off' THEN 'on' ELSE",
                "WHEN 'off' THEN 'off' ELSE",
            ),
        ),
    ),
    Mutant(
        2,
        "PostgreSQL: a server with fsync off is taken",
        SQL_TEST + "test_a_server_that_does_not_flush_is_refused",
        (
            edit(
                DATABASE,
                'if cursor.execute("SHOW fsync").fetchone() != ("on",):',
                "if False:",
            ),
        ),
    ),
    Mutant(
        3,
        "the attempt is not counted up",
        LOG_TEST + "test_an_attempt_is_never_numbered_twice[sqlite]",
        (edit(LOG, "newest.attempt + 1 if newest", "newest.attempt if newest"),),
    ),
    Mutant(
        4,
        "a participant commits all that is prepared",
        ANSWERS_TEST + "test_a_branch_that_is_not_named_aborts[TaggedRows-sqlite]",
        (
            edit(
                JOURNALLED,
                "losers = [held for held in prepared if held.named.branch not in "
                "chosen]",
                "losers = [held for held in prepared if not chosen]",
            ),
        ),
    ),
    Mutant(
        4,
        "a participant commits a branch whatever its content",
        ANSWERS_TEST + "test_commit_is_all_or_nothing[TaggedRows-sqlite]",
        (
            edit(
                ANSWERS,
                "    if held.named != wanted:\n        detail = (",
                "    if False:\n        detail = (",
            ),
        ),
    ),
    Mutant(
        4,
        "the request names branches that were not chosen",
        TRANSPORT_TEST + "test_a_commit_names_its_branches_and_the_watermark",
        (edit(HTTP, "for r in record.chosen(self.name)", "for r in record.receipts"),),
    ),
    Mutant(
        5,
        "a participant answers success for a branch that it does not know",
        ANSWERS_TEST + "test_every_cell[TaggedRows-sqlite-<lambda>-commit]",
        (
            edit(
                ANSWERS,
                "    if held is None:\n        return _no(seen, 404",
                "    if held is None:\n        return None\n"
                "    if held is None:\n        return _no(seen, 404",
            ),
        ),
    ),
    Mutant(
        5,
        "PreparedTransactions answers success for a branch that was rolled back",
        PREPARED_TEST
        + "test_the_rest_of_a_half_done_commit_that_is_rolled_back_by_hand",
        (edit(PREPARED, "self._check(connection, transaction)", "pass"),),
    ),
    Mutant(
        5,
        "the driver takes 404 for an acknowledgement",
        COORDINATOR_TEST + "test_lost_or_contradicted_is_quarantined[answer0]",
        (
            edit(
                DELIVERY,
                "        if answer is None:\n",
                '        if answer is None or getattr(answer, "status", 0) == 404:\n',
            ),
            edit(
                DELIVERY,
                "        if answer is None or isinstance(",
                '        if getattr(answer, "status", 0) == 404 or answer is None '
                "or isinstance(",
            ),
        ),
    ),
    Mutant(
        6,
        "branches in doubt are not listed",
        ANSWERS_TEST + "test_the_list[TaggedRows-sqlite]",
        (NOT_LISTED,),
    ),
    Mutant(
        6,
        "they are not listed, and an abort leaves no tombstone",
        ANSWERS_TEST + "test_late_prepare_after_an_abort_is_refused[TaggedRows-sqlite]",
        (NOT_LISTED, NO_TOMBSTONE),
    ),
    Mutant(
        7,
        "begin leaves earlier undecided attempts active",
        LOG_TEST + "test_begin_aborts_every_undecided_attempt[sqlite]",
        (BEGIN_ABORTS_NOBODY,),
    ),
    Mutant(
        7,
        "and with 14: an older attempt may be decided commit",
        LOG_TEST + "test_a_superseded_driver_is_told_abort[sqlite]",
        (BEGIN_ABORTS_NOBODY, OLDER_MAY_COMMIT),
    ),
    Mutant(
        8,
        "recovery aborts an attempt that is in time",
        RECOVERY_TEST + "test_a_current_attempt_is_left_to_its_driver",
        (
            edit(
                RECOVERY,
                "self.log.expire(record.id)",
                "self.log.decide(record.id, Decision.ABORT)",
            ),
        ),
    ),
    Mutant(
        8,
        "the log takes an attempt that is in time for overdue",
        LOG_TEST + "test_only_what_is_overdue_expires[sqlite]",
        (
            edit(
                RECORD_RULES,
                "record.deadline is not None and clock >= record.deadline",
                "record.deadline is not None",
            ),
        ),
    ),
    Mutant(
        8,
        "recovery aborts without asking the log",
        RECOVERY_TEST
        + "test_an_abort_that_the_log_did_not_take_is_left_for_the_next_sweep"
        "[DecisionLogError]",
        (
            edit(
                RECOVERY,
                "decided = self.log.expire(record.id)",
                "decided = dataclasses.replace(record, decision=Decision.ABORT)",
            ),
        ),
    ),
    Mutant(
        8,
        "the driver aborts without asking the log",
        COORDINATOR_TEST
        + "test_an_undecided_error_after_a_commit_that_stands_never_aborts",
        (
            edit(
                COORDINATOR,
                "decided = ask_abort(self.log, record, cause, self.tracing)",
                "decided = dataclasses.replace(record, decision=Decision.ABORT)",
            ),
        ),
    ),
    Mutant(
        8,
        "the driver takes a log that does not answer for an abort",
        "unit/test_coordinator_guards.py::"
        "test_an_abort_that_the_log_did_not_take_is_not_sent[DecisionLogError]",
        (
            edit(
                COORDINATOR,
                "decided = ask_abort(self.log, record, cause, self.tracing)\n",
                "decided = ask_abort(\n"
                "            self.log, record, cause, self.tracing\n"
                "        ) or dataclasses.replace(record, decision=Decision.ABORT)\n",
            ),
        ),
    ),
    Mutant(
        9,
        "a log that cannot be read looks empty to recovery",
        "unit/test_recovery_guards.py::test_a_log_that_fails_half_way_means_leave_alone",
        (
            edit(
                RECOVERY,
                "raise  # the log itself cannot be read",
                "continue  # the log itself cannot be read",
            ),
        ),
    ),
    Mutant(
        9,
        "a record that does not match its checksum is believed",
        SQL_TEST + "test_an_edited_record_is_refused[sqlite-run]",
        (edit("store/rows.py", 'if checksum(record) == row["checksum"]:', "if True:"),),
    ),
    Mutant(
        9,
        "410 is taken for done without a look into the log",
        COORDINATOR_TEST + "test_forgotten_there_and_unfinished_here_is_lost",
        (
            edit(
                DELIVERY,
                "return current is None or current.finished is not None",
                "return True",
            ),
        ),
    ),
    Mutant(
        9,
        "a log that cannot be read looks empty to the watcher",
        WATCHER_TEST + "test_without_the_log_nothing_is_said",
        (edit(OBSERVATION, "logged = None", "logged = Logged({}, {}, {}, {}, 0)"),),
    ),
    Mutant(
        9,
        "the watcher reads the log before the lists",
        WATCHER_TEST + "test_what_begins_after_the_log_was_read_is_no_orphan",
        (
            edit(
                OBSERVATION,
                "        logged = read_log(log, first, unreadable)\n",
                "        logged = read_log(log, first, unreadable)\n"
                "        first = list_all(participants, unreadable)\n",
            ),
        ),
    ),
    Mutant(
        9,
        "what the watcher has seen once is enough",
        LEAVE_ALONE_TEST + "[landed after the first look]",
        (
            edit(
                EVIDENCE,
                "if (b.transaction, b.branch) in before]",
                "if before is not None]",
            ),
        ),
    ),
    Mutant(
        9,
        "half a list is evidence to the watcher",
        LEAVE_ALONE_TEST + "[half a first list]",
        (edit(EVIDENCE, "not (first.complete and second.complete)", "False"),),
    ),
    Mutant(
        10,
        "the driver does not deliver what it finds unfinished",
        "unit/test_coordinator_guards.py::"
        "test_what_is_decided_is_delivered_before_the_next_batch",
        (NO_RECOVERY_AT_START,),
    ),
    Mutant(
        10,
        "nor the batch that Spark replays",
        COORDINATOR_TEST + "test_a_crash_after_the_decision_is_committed_by_the_replay",
        (NO_RECOVERY_AT_START, REPLAY_NOT_DELIVERED),
    ),
    Mutant(
        10,
        "an abort that was not acknowledged is not sent again",
        COORDINATOR_TEST
        + "test_an_abort_that_nobody_heard_is_sent_again_before_the_next_batch",
        (
            edit(
                COORDINATOR,
                "            elif record.state is TransactionState.ABORTING:\n"
                "                self.delivery.abort(record)\n",
                "",
            ),
        ),
    ),
    Mutant(
        10,
        "recovery does not deliver",
        RECOVERY_TEST + "test_what_is_decided_is_delivered",
        (
            edit(
                RECOVERY,
                "            silent = self.delivery.once(record)\n",
                "            silent: Mapping[str, str] = {}\n",
            ),
        ),
    ),
    Mutant(
        10,
        "the driver gives up after the first try",
        COORDINATOR_TEST + "test_waiting_is_the_default_and_backs_off",
        (
            edit(
                DELIVERY,
                "            last = give_up and tries >= inline\n",
                "            last = True\n",
            ),
        ),
    ),
    Mutant(
        11,
        "the log finishes what somebody has not acknowledged",
        LOG_TEST
        + "test_finished_only_after_every_acknowledgement[sqlite-commit-committed]",
        (FINISH_UNHEARD,),
    ),
    Mutant(
        11,
        "and the driver asks for it",
        COORDINATOR_TEST + "test_a_crash_between_two_commits_is_finished",
        (FINISH_UNHEARD, DELIVERED_UNHEARD),
    ),
    Mutant(
        11,
        "no answer counts as an acknowledgement",
        COORDINATOR_TEST + "test_a_crash_between_two_commits_is_finished",
        (
            edit(
                DELIVERY,
                "        self._log.postpone(record.id, name, reason, due)\n"
                "        return reason\n",
                "        self._log.acknowledge(record.id, name)\n        return None\n",
            ),
        ),
    ),
    Mutant(
        12,
        "the watermark takes prepared branches with it",
        ANSWERS_TEST
        + "test_a_prepared_branch_outlives_the_watermark[TaggedRows-sqlite]",
        (
            edit(
                JOURNAL,
                'b.delete().where(*below, b.c.state != "prepared")',
                "b.delete().where(*below)",
            ),
        ),
    ),
    Mutant(
        12,
        "and in PreparedTransactions what it says of them",
        PREPARED_TEST + "test_the_watermark_drops_outcomes_and_what_never_happened",
        (
            edit(
                PREPARED_JOURNAL,
                "        super().raise_watermark(connection, seen, to)\n",
                "        connection.execute(b.delete().where(*below))\n"
                "        super().raise_watermark(connection, seen, to)\n",
            ),
        ),
    ),
    Mutant(
        12,
        "a prepared branch is dropped when it is an hour old",
        "contract/test_answers_waiting.py::"
        "test_a_prepared_branch_waits_for_ever[sqlite]",
        (
            edit(
                JOURNAL,
                "        self._record(connection, seen, carrier)\n"
                "        b = self.t.branch\n        connection.execute(\n",
                "        self._record(connection, seen, carrier)\n"
                "        b = self.t.branch\n        connection.execute(\n"
                '            b.delete().where(b.c.state == "prepared", '
                "b.c.since < now - 3600)\n        )\n        connection.execute(\n",
            ),
        ),
    ),
    Mutant(
        12,
        "the sweeper takes the rows of prepared branches",
        "contract/test_answers_waiting.py::"
        "test_a_prepared_branch_waits_for_ever[sqlite]",
        (
            edit(
                JOURNAL,
                "            sa.select(h.c.tag, h.c.doomed)\n"
                "            .where(h.c.doomed.is_not(None), h.c.tag > after)\n",
                "            sa.select(h.c.tag, sa.func.coalesce(h.c.doomed, 9)"
                '.label("doomed"))\n            .where(h.c.tag > after)\n',
            ),
        ),
    ),
    Mutant(
        13,
        "SQLite: a prepare does not flush",
        "contract/test_answers_durable.py::test_each_answer_waits_for_the_disk[sqlite]",
        (
            edit(
                SQLITE,
                '        return self._database.decide("")\n',
                '        return self._database.note("")\n',
            ),
        ),
    ),
    Mutant(
        13,
        "PostgreSQL: a prepare does not flush",
        "contract/test_answers_durable.py::"
        "test_each_answer_waits_for_the_disk[postgresql]",
        (
            edit(
                POSTGRESQL,
                'f"SELECT {session.FLUSHED}, pg_advisory_xact_lock_shared',
                'f"SELECT {session.UNFLUSHED}, pg_advisory_xact_lock_shared',
            ),
        ),
    ),
    Mutant(
        13,
        "SQLite: commit and abort do not flush",
        "contract/test_answers_durable.py::test_each_answer_waits_for_the_disk[sqlite]",
        (
            edit(
                SQLITE,
                'SQLite has one writer."""\n        return self._write("FULL")',
                'SQLite has one writer."""\n        return self._write("NORMAL")',
            ),
        ),
    ),
    Mutant(
        13,
        "PostgreSQL: a role that does not flush is not overruled",
        "contract/test_answers_durable.py::test_a_role_that_does_not_flush_is_overruled",
        (
            edit(
                SESSION,
                "WHEN 'off' THEN 'on' ELSE",
                "WHEN 'off' THEN 'off' ELSE",
            ),
        ),
    ),
    Mutant(
        13,
        "PreparedTransactions: a seal without branches is not flushed",
        PREPARED_TEST + "test_flushes[0]",
        (
            edit(
                PREPARED,
                "flushed(connection)\n                    commit(connection)",
                "unflushed(connection)\n                    commit(connection)",
            ),
        ),
    ),
    Mutant(
        14,
        "an older attempt may be decided commit",
        SQL_TEST + "test_an_attempt_with_a_newer_one_cannot_commit[sqlite]",
        (OLDER_MAY_COMMIT,),
    ),
    Mutant(
        14,
        "and a decision may turn",
        LOG_TEST + "test_a_superseded_driver_is_told_abort[sqlite]",
        (OLDER_MAY_COMMIT, DECIDED_AGAIN, ABORTING_MAY_COMMIT),
    ),
    Mutant(
        15,
        "the driver does as it wanted, not as the log says",
        COORDINATOR_TEST + "test_a_superseded_driver_obeys_what_stands",
        (
            edit(
                ASKING,
                "            return log.decide(record.id, Decision.COMMIT, receipts)\n",
                "            log.decide(record.id, Decision.COMMIT, receipts)\n"
                "            import dataclasses\n"
                "            return dataclasses.replace(record, receipts=receipts,\n"
                "                decision=Decision.COMMIT)\n",
            ),
        ),
    ),
    Mutant(
        15,
        "a decide without an answer is taken for abort",
        COORDINATOR_TEST + "test_a_decide_without_an_answer_is_asked_again",
        (edit(ASKING, "            last = error\n", "            return None\n"),),
    ),
    Mutant(
        15,
        "a decide without an answer is not asked again",
        COORDINATOR_TEST + "test_a_decide_without_an_answer_is_asked_again",
        (
            edit(
                ASKING,
                "for tries in itertools.islice(patience.tries(), "
                "patience.inline_tries)",
                "for tries in itertools.islice(patience.tries(), 1)",
            ),
        ),
    ),
    Mutant(
        15,
        "a driver that waits does not look into the log again",
        "unit/test_coordinator_guards.py::"
        "test_who_waits_for_an_acknowledgement_looks_into_the_log",
        (
            edit(
                DELIVERY,
                "            if tries > 1:\n"
                "                current = self._read(record)\n",
                "",
            ),
        ),
    ),
    Mutant(
        16,
        "seals above the watermark are dropped",
        "contract/test_answers_waiting.py::"
        "test_what_is_sealed_is_kept_above_the_watermark[sqlite]",
        (
            edit(
                JOURNAL,
                "        below = (b.c.application == name, b.c.batch <= to)\n",
                "        below = (b.c.application == name, b.c.batch <= to + 1)\n",
            ),
            edit(
                JOURNAL,
                "        below = (t.c.application == name, t.c.batch <= to)\n",
                "        below = (t.c.application == name, t.c.batch <= to + 1)\n",
            ),
        ),
    ),
    Mutant(
        16,
        "tombstones are dropped whatever the watermark",
        "contract/test_answers_waiting.py::"
        "test_what_is_sealed_is_kept_above_the_watermark[sqlite]",
        (
            edit(
                JOURNAL,
                "        below = (t.c.application == name, t.c.batch <= to)\n",
                "        below = (t.c.application == name,)\n",
            ),
        ),
    ),
    Mutant(
        17,
        "the newest batch is forgotten",
        LOG_TEST + "test_the_newest_batch_is_never_forgotten[sqlite]",
        (NEWEST_FORGOTTEN,),
    ),
    Mutant(
        17,
        "a batch at the watermark may begin",
        LOG_TEST + "test_a_batch_at_the_watermark_is_refused[sqlite]",
        (BEGIN_BELOW_WATERMARK,),
    ),
    Mutant(
        17,
        "a batch at the watermark may be decided",
        SQL_TEST + "test_nothing_is_decided_at_the_watermark[sqlite]",
        (DECIDE_BELOW_WATERMARK,),
    ),
    Mutant(
        17,
        "all three",
        "unit/test_coordinator_guards.py::"
        "test_a_batch_that_was_forgotten_is_not_written_again",
        (NEWEST_FORGOTTEN, BEGIN_BELOW_WATERMARK, DECIDE_BELOW_WATERMARK),
    ),
    Mutant(
        18,
        "the index of commits is not unique",
        SQL_TEST + "test_a_second_commit_does_not_fit_into_the_table[sqlite]",
        (NO_UNIQUE_COMMIT,),
    ),
    Mutant(
        18,
        "begin does not recognise a replay",
        LOG_TEST + "test_a_committed_batch_is_a_replay[sqlite]",
        (NO_REPLAY,),
    ),
    Mutant(
        18,
        "decide does not see the committed attempt",
        SQL_TEST + "test_a_committed_batch_cannot_commit_again[sqlite]",
        (COMMITTED_IS_NO_RIVAL,),
    ),
    Mutant(
        18,
        "a participant commits another attempt of a batch",
        ANSWERS_TEST + "test_a_batch_is_committed_once[TaggedRows-sqlite]",
        (COMMITS_ANOTHER_ATTEMPT,),
    ),
    Mutant(
        18,
        "a participant prepares another attempt of a committed batch",
        ANSWERS_TEST
        + "test_an_empty_commit_counts_as_the_committed_attempt[TaggedRows-sqlite]",
        (PREPARES_ANOTHER_ATTEMPT,),
    ),
    Mutant(
        18,
        "all of them",
        "fencing/test_replayed.py::test_a_replayed_batch_is_applied_once",
        (
            NO_UNIQUE_COMMIT,
            NO_REPLAY,
            COMMITTED_IS_NO_RIVAL,
            COMMITS_ANOTHER_ATTEMPT,
            PREPARES_ANOTHER_ATTEMPT,
        ),
    ),
    Mutant(
        19,
        "a prepare at or below the watermark is taken",
        ANSWERS_TEST + "test_every_cell[TaggedRows-sqlite-forgotten-prepare same]",
        (
            edit(
                ANSWERS,
                '18, 19 and 20)."""\n    if seen.forgotten:\n',
                '18, 19 and 20)."""\n    if False:\n',
            ),
        ),
    ),
    Mutant(
        19,
        "the watermark may fall",
        ANSWERS_TEST + "test_the_watermark_never_falls[TaggedRows-sqlite]",
        (edit(JOURNAL, "and to <= seen.watermark:", "and to == seen.watermark:"),),
    ),
    Mutant(
        19,
        "it is raised in a local transaction of its own",
        "contract/test_answers_durable.py::"
        "test_a_request_that_fails_at_any_statement_changes_nothing[sqlite-commit]",
        (
            edit(
                JOURNAL,
                "        connection.execute(statement)\n        below",
                "        connection.execute(statement)\n"
                '        connection.exec_driver_sql("COMMIT")\n'
                '        connection.exec_driver_sql("BEGIN")\n        below',
            ),
        ),
    ),
    Mutant(
        19,
        "participants are told a watermark that is not durable",
        SQL_TEST + "test_participants_are_told_a_watermark_that_is_durable[sqlite]",
        (
            edit(
                STATEMENTS,
                'application.c.durable_watermark.label("watermark")',
                "application.c.watermark",
            ),
        ),
    ),
    Mutant(
        20,
        "a prepare does not look at seal and watermark again",
        ANSWERS_TEST + "test_an_upload_whose_transaction_is_sealed_votes_abort"
        "[TaggedRows-sqlite-watermark]",
        (
            edit(
                ANSWERS,
                '(rule 20)?"""\n    if (refused := _closed(seen, wanted.branch)) '
                "is not None:\n        return refused\n",
                '(rule 20)?"""\n',
            ),
            edit(
                ANSWERS,
                "if held is None or held.tag != tag or held.state is not WRITING:",
                "if held is not None and held.state is ABORTED:",
            ),
        ),
    ),
    Mutant(
        20,
        "a prepare does not look whether its own branch was aborted",
        ANSWERS_TEST + "test_an_upload_whose_transaction_is_sealed_votes_abort"
        "[TaggedRows-sqlite-branch]",
        (
            edit(
                ANSWERS,
                "if held is None or held.tag != tag or held.state is not WRITING:",
                "if held is None:",
            ),
        ),
    ),
    Mutant(
        20,
        "TaggedRows looks without the lock",
        "contract/test_answers_fence.py::test_a_decision_waits_for_the_end_of_a_prepare"
        "[abort-TaggedRows]",
        (
            edit(
                JOURNALLED,
                "        writer.share(connection, transaction.application)\n",
                "",
            ),
        ),
    ),
    Mutant(
        20,
        "PreparedTransactions looks without its fence",
        "contract/test_answers_fence.py::test_a_decision_waits_for_the_end_of_a_prepare"
        "[abort-PreparedTransactions]",
        (
            edit(
                PREPARED,
                "        with writer.fence(transaction.application):\n",
                "        with contextlib.nullcontext():\n",
            ),
        ),
    ),
    Mutant(
        20,
        "PreparedTransactions does not obey what it sees",
        PREPARED_TEST + "test_an_abort_ends_a_prepare_between_two_of_its_statements",
        (
            edit(
                PREPARED,
                "kept := answer.status == 200 and wanted.rows > 0",
                "kept := wanted.rows > 0",
            ),
        ),
    ),
    Mutant(
        "begin first",
        "tasks run before their attempt is on record",
        COORDINATOR_TEST + "test_participants_are_on_record_before_anybody_is_asked",
        (edit(LOG, "            records.add(connection, opened)\n", ""),),
    ),
    Mutant(
        "decided once",
        "a decision may turn",
        LOG_TEST + "test_a_decision_is_written_once[sqlite-abort-commit]",
        (DECIDED_AGAIN, ABORTING_MAY_COMMIT),
    ),
    Mutant(
        "decided once",
        "aborting may become committing",
        "unit/test_vocabulary.py::test_a_decision_never_turns",
        (ABORTING_MAY_COMMIT,),
    ),
    Mutant(
        "one at a time",
        "PostgreSQL: begin, decide and forget do not lock the application",
        SQL_TEST + "test_every_change_locks_its_application_first",
        (edit(STATEMENTS, "    .with_for_update()\n)\n", ")\n"),),
    ),
    Mutant(
        "one at a time",
        "SQLite: begin and decide do not lock before they read",
        "contract/test_decision_log_locks.py::"
        "test_begin_decide_and_forget_come_one_after_another[sqlite-decide]",
        (
            edit(
                DATABASE,
                '        durable.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"}),\n',
                '        durable.execution_options(**{_BEGIN: "BEGIN"}),\n',
            ),
        ),
    ),
    Mutant(
        "tombstone",
        "an abort of what is unknown leaves nothing",
        ANSWERS_TEST + "test_late_prepare_after_an_abort_is_refused[TaggedRows-sqlite]",
        (NO_TOMBSTONE,),
    ),
    Mutant(
        "seal",
        "a commit does not seal",
        ANSWERS_TEST
        + "test_an_empty_commit_counts_as_the_committed_attempt[Outbox-sqlite]",
        (
            edit(
                JOURNAL,
                'values = {"seal": str(outcome), "resolved_because": because}',
                'values = {"resolved_because": because}',
            ),
        ),
    ),
    Mutant(
        "not named",
        "a commit leaves branches prepared that it does not name",
        ANSWERS_TEST + "test_a_branch_that_is_not_named_aborts[Outbox-sqlite]",
        (
            edit(
                JOURNAL,
                "        self._abort(connection, losers, now)\n"
                "        of = (*rows_of(b, seen.transaction), b.c.sealed.is_(None))\n",
                "        left = b.c.tag.not_in(list(losers))\n"
                "        of = (*rows_of(b, seen.transaction), b.c.sealed.is_(None), "
                "left)\n",
            ),
        ),
    ),
    Mutant(
        "half done",
        "PreparedTransactions does not go on with a commit that was cut short",
        PREPARED_TEST + "test_a_commit_of_many_branches_that_is_killed_half_way",
        (
            edit(
                PREPARED,
                "                yield connection, "
                "self._journal.read(connection, transaction)\n",
                "                seen = self._journal.read(connection, transaction)\n"
                "                yield connection, seen\n",
            ),
            edit(
                PREPARED,
                "sealed = self._journal.sealed(connection, transaction)",
                "sealed = [] if seen.seal else "
                "self._journal.sealed(connection, transaction)",
            ),
        ),
    ),
    Mutant(
        "everybody",
        "a participant without branches is not told the commit",
        "unit/test_coordinator_guards.py::"
        "test_a_participant_without_branches_is_told_the_commit",
        (
            edit(
                DELIVERY,
                "for n in record.pending if n in self._participants}",
                "for n in record.pending if n in self._participants\n"
                "            and (record.chosen(n) or not record.receipts)}",
            ),
            edit(
                DELIVERY,
                '            return "no address"\n',
                "            self._log.acknowledge(record.id, name)\n"
                "            return None\n",
            ),
        ),
    ),
    Mutant(
        "watermark",
        "it passes an abort that was not acknowledged",
        LOG_TEST + "test_all_attempts_of_a_batch_go_together[sqlite]",
        (
            edit(
                STATEMENTS,
                "sa.or_(_OPEN, sa.not_(old))",
                "sa.or_(\n"
                '            sa.and_(_OPEN, transaction.c.state != "aborting"),\n'
                "            sa.not_(old),\n        )",
            ),
        ),
    ),
    Mutant(
        "an answer counts",
        "200 counts whatever transaction it names",
        TRANSPORT_TEST + "test_anything_else_is_no_answer[another transaction]",
        (
            edit(
                "transports/wire.py",
                'item is None or item.get("transaction_id") != request.transaction_id:',
                "item is None:",
            ),
        ),
    ),
)
