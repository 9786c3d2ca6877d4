"""The table: a rule, how it is taken out, and the test that turns red. Add here.

Each edit says what is replaced in which function, in the language of `edits`. Names of
variables that say nothing of the rule are placeholders there: `__name`. An edit that
more than one mutation needs has a name: guards behind each other are taken out alone,
and together.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Final

from rules.edits import Edit

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


def mutant(rule_and_words: str, test: str, *edits: Edit) -> Mutant:
    """Make a row of the table; a colon ends the rule."""
    rule, _, words = rule_and_words.partition(": ")
    return Mutant(int(rule) if rule.isdigit() else rule, words, test, edits)


def edit(at: str, old: str, new: str = "", *, in_text: bool = False) -> Edit:
    """Make an edit of Python, see `edits`, at a module of the package and a name."""
    file, _, where = at.partition("::")
    return Edit(f"tracing_2pc/{file}", where, old, new, in_text)


def edit_text(at: str, old: str, new: str = "") -> Edit:
    """Make an edit of the words of a string constant, as SQL is."""
    return edit(at, old, new, in_text=True)


VOTES = "protocol/votes.py::"
COORDINATOR = "protocol/coordinator.py::"
DELIVERY = "protocol/delivery.py::"
RECOVERY = "protocol/recovery.py::"
ASKING = "protocol/decisions.py::"
LOG = "store/log/decision_log.py::"
STOPPING = "launch/suspended_job.py::SuspendedJob._stop"
STATEMENTS = "store/log/statements.py::"
RECORD_RULES = "store/log/rules.py::"
ANSWERS = "participant/answers.py::"
ENGINE = "participant/engine.py::"
JOURNAL = "participant/journal/journal.py::"
JOURNAL_STATEMENTS = "participant/journal/statements.py::"
TAGGED = "participant/resources/tagged_branches.py::"
EXTERNAL = "participant/resources/external_branches.py::"
PARTICIPANT_DATABASE = "participant/journal/database.py::"
POSTGRESQL = "participant/journal/postgresql.py::"
POSTGRESQL_ENGINE = "store/engines/postgresql.py::"
SQLITE_ENGINE = "store/engines/sqlite.py::"
CLIENT = "wire/client.py::"
EVIDENCE = "inspection/evidence.py::"
SURVEY = "inspection/survey.py::"
PUBLISHER = "outbox/publisher.py::Publisher."
TURNS = "outbox/turns.py::Turns."
PUBLICATIONS = "outbox/publications.py::Publications."
KAFKA_RELAY = "kafka/relay.py::KafkaRelay."

in_raise = functools.partial(edit, JOURNAL + "raise_forgotten_through")
in_deciding = functools.partial(edit, EXTERNAL + "deciding")
in_begin = functools.partial(edit, LOG + "begin")
in_asking = functools.partial(edit, ASKING + "decide_commit")
in_settle = functools.partial(edit, RECOVERY + "settle")

# --- edits with a name ---------------------------------------------------------------

NO_TOMBSTONE = edit(
    ANSWERS + "_yes",
    "__outcome if __seen.seal is None else None",
    "__outcome if __seen.seal is None and __seen.recorded else None",
)
NOT_LOOKED_AT_AGAIN = edit(
    ENGINE + "prepare",
    "if __answer is not None: ...\n"
    "if __row.participant not in (None, participant): ...",
    "pass",
)
NOT_LISTED = edit(
    JOURNAL + "list_open",
    "__q.where(__b.c.sealed.is_(None), __newer)",
    '__q.where(__b.c.state != "prepared", __b.c.sealed.is_(None), __newer)',
)
BEGIN_ABORTS_NOBODY = in_begin(
    "(__c.decide(...) for __r in __active)",
    "(__c.decide(...) for __r in __active[:0])",
)
OLDER_MAY_COMMIT = edit_text(STATEMENTS + "RIVALS", "attempt > :than_attempt OR")
DECIDED_AGAIN = edit(
    LOG + "SqlDecisionLog.decide", "if __r.state is not TransactionState.ACTIVE: ..."
)
ABORTING_MAY_COMMIT = edit(
    "core/states.py::",
    "TRANSACTION_TABLE: __type = __table",
    "TRANSACTION_TABLE: __type = "
    "{**__table, (T.ABORTING, E.DECIDE_COMMIT): T.COMMITTING}",
)
FINISH_UNHEARD = edit(
    LOG + "SqlDecisionLog.finish", "if __r.pending: ...", "if False: ..."
)
DELIVERED_UNHEARD = edit(
    DELIVERY + "send_once", "if not __reasons: ...", "if True: ..."
)
NEWEST_FORGOTTEN = edit_text(
    STATEMENTS + "_MAY_GO",
    "(SELECT batch FROM tpc_transaction WHERE application = :of ORDER",
    "(SELECT batch + 1 FROM tpc_transaction WHERE application = :of ORDER",
)
BEGIN_BELOW_FORGOTTEN_THROUGH = edit(
    RECORD_RULES + "_check_age",
    "__s.forgotten_through is not None and __b <= __s.forgotten_through",
    "False",
)
DECIDE_BELOW_FORGOTTEN_THROUGH = edit(
    RECORD_RULES + "is_forgotten", "return __answer", "return False"
)
NO_UNIQUE_COMMIT = edit(
    "store/log/schema.py::",
    'sa.Index("tpc_one_commit", ..., unique=True)',
    'sa.Index("tpc_one_commit", ..., unique=False)',
)
NO_REPLAY = in_begin("__c.committed(...)", "None")
CONFIRMS_ANOTHER_POSITION = edit(
    PUBLICATIONS + "confirm",
    "if self.positions_in(connection).get(BEGUN) != position: ...",
)
COMMITTED_IS_NO_RIVAL = edit_text(STATEMENTS + "RIVALS", "OR decision = 'commit'")
COMMITS_ANOTHER_ATTEMPT = edit(
    ANSWERS + "commit", "__seen.seal is None and __seen.committed", "False"
)
PREPARES_ANOTHER_ATTEMPT = edit(
    ANSWERS + "_closed", "if __seen.committed: ...", "if False: ..."
)
NO_RECOVERY_AT_START = edit(COORDINATOR + "open", "self.recover()", "set()")
REPLAY_NOT_DELIVERED = edit(COORDINATOR + "open", "if __r.id not in __delivered: ...")
NOT_OVERRULED = edit_text(
    POSTGRESQL_ENGINE + "FLUSHED", "WHEN 'off' THEN 'on'", "WHEN 'off' THEN 'off'"
)

STORED_IN_PART = edit(PUBLICATIONS + "_messages", "if __r != __b.rows: ...")

# --- the table -----------------------------------------------------------------------

REJECTS_TEST = "component/test_rejects.py::"
LOG_TEST = "contract/test_decision_log.py::"
SQL_TEST = "contract/test_decision_log_sql.py::"
ANSWERS_TEST = "contract/test_answers.py::"
KIT_TEST = "contract/test_resource_contract.py::TestTaggedRows::"
LAUNCH_TEST = "launch/test_launch.py::"
COORDINATOR_TEST = "component/test_coordinator.py::"
GUARDS_TEST = "component/test_coordinator_guards.py::"
RECOVERY_TEST = "component/test_recovery.py::"
TRANSPORT_TEST = "component/test_http_transport.py::"
PREPARED_TEST = "contract/test_prepared_transactions.py::"
WATCHER_TEST = "contract/test_watcher.py::"
DURABLE_TEST = "contract/test_answers_durable.py::"
LOCK_TEST = "contract/test_answers_lock.py::"
RELAY_TEST = "contract/test_relay.py::"
RELAY_ERRORS_TEST = "contract/test_relay_errors.py::"
KILLED_RELAY_TEST = RELAY_TEST + "test_it_is_there_once_wherever_its_process_ends"
SLEEPING_RELAY_TEST = (
    RELAY_TEST + "test_it_is_there_once_if_a_relay_sleeps_beside_its_successor"
)
KAFKA_TEST = "component/test_kafka_relay.py::"
OTHER_POSITION_TEST = RELAY_TEST + "test_another_position_stops_the_relay"
REFUSED_TEST = (
    RELAY_TEST
    + "test_what_a_broker_refuses_waits_in_order_and_others_go_on[sqlite-again]"
)
LEAVE_ALONE_TEST = "unit/test_diagnosis.py::test_any_leave_alone_wins"

MUTANTS: Final = (
    mutant(
        "1: decide takes a vote to abort",
        LOG_TEST + "test_a_commit_needs_every_vote[sqlite-abort]",
        edit(
            VOTES + "check_votes",
            "(Vote.COMMIT, Vote.READ_ONLY)",
            "(Vote.COMMIT, Vote.READ_ONLY, Vote.ABORT)",
        ),
    ),
    mutant(
        "1: decide takes a participant that has not voted",
        LOG_TEST + "test_a_commit_needs_every_vote[sqlite-silence]",
        edit("store/log/receipts.py::check_receipts", "check_votes(__r, __all)"),
    ),
    mutant(
        "1: decide takes a branch that lacks a vote",
        LOG_TEST + "test_a_commit_needs_every_vote[sqlite-one branch]",
        edit(VOTES + "_check_nobody_is_missing", "set().union(...) - __names", "set()"),
    ),
    mutant(
        "1: decide takes two receipts for a partition",
        LOG_TEST + "test_a_commit_needs_every_vote[sqlite-twin]",
        edit(
            VOTES + "check_votes",
            "(__name, __r.branch.partition)",
            "(__name, __r.branch)",
        ),
    ),
    mutant(
        "1: decide takes written rows of one branch and rejected ones of another",
        "unit/test_votes.py::test_a_vote_that_rejects_lacks"
        "[receipts3-r about branch 0.7]",
        edit(VOTES + "check_votes", "sorted(__voters.keys() ^ __keeping)", "[]"),
    ),
    mutant(
        "1: the coordinator asks for a commit that lacks a vote",
        GUARDS_TEST + "test_the_log_is_not_asked_for_a_commit_without_every_vote",
        edit(COORDINATOR + "decide", "check_votes(__r, __all)"),
    ),
    mutant(
        "1: an answer that does not vote commit counts as a vote",
        TRANSPORT_TEST + "test_rows_without_a_vote_to_commit_are_refused[read_only]",
        edit(CLIENT + "_no_vote", '__item.get("vote") != Vote.COMMIT', "False"),
    ),
    mutant(
        "2: a commit leaves before it is decided",
        COORDINATOR_TEST + "test_a_log_that_stays_silent_is_not_taken_for_a_no",
        edit(
            COORDINATOR + "decide",
            "check_votes(__r, __receipts)",
            "self.delivery._ask_all(\n"
            "    dataclasses.replace(\n"
            "        __r, decision=Decision.COMMIT, receipts=__receipts\n"
            "    )\n"
            ")\n",
        ),
    ),
    mutant(
        "2: SQLite: decide does not flush (synchronous NORMAL for FULL)",
        SQL_TEST + "test_begin_and_decide_wait_for_the_disk[sqlite]",
        edit_text(
            SQLITE_ENGINE + "_WRITE", "synchronous = FULL", "synchronous = NORMAL"
        ),
    ),
    mutant(
        "2: PostgreSQL: decide does not flush (synchronous_commit off)",
        SQL_TEST + "test_begin_and_decide_wait_for_the_disk[postgresql]",
        edit(
            POSTGRESQL_ENGINE + "PostgreSQL.__init__",
            "f'{begin}, {FLUSHED}'",
            "f'{begin}, {UNFLUSHED}'",
        ),
    ),
    mutant(
        "2: PostgreSQL: a role that does not flush is not overruled",
        SQL_TEST + "test_a_role_that_does_not_flush_is_overruled",
        NOT_OVERRULED,
    ),
    mutant(
        "2: PostgreSQL: a server with fsync off is taken",
        SQL_TEST + "test_a_server_that_does_not_flush_is_refused",
        edit(POSTGRESQL_ENGINE + "_check_server", "fsync == 'on'", "True"),
    ),
    mutant(
        "3: the attempt is not counted up",
        LOG_TEST + "test_an_attempt_is_never_numbered_twice[sqlite]",
        in_begin("__attempt + 1", "max(1, __attempt)"),
    ),
    mutant(
        "4: a participant commits all that is prepared",
        ANSWERS_TEST + "test_a_branch_that_is_not_named_aborts[TaggedRows-sqlite]",
        edit(ANSWERS + "commit", "__branch not in __named", "not __named"),
    ),
    mutant(
        "4: a participant commits a branch whatever its content",
        KIT_TEST + "test_a_commit_is_all_or_nothing[other content]",
        edit(ANSWERS + "_uncommittable", "__there != __wanted", "False"),
    ),
    mutant(
        "4: the request names branches that were not chosen",
        TRANSPORT_TEST + "test_a_commit_names_its_branches_and_forgotten_through",
        edit(CLIENT + "commit", "__r.chosen(self.name)", "__r.receipts"),
    ),
    mutant(
        "5: a participant answers success for a branch that it does not know",
        ANSWERS_TEST + "test_every_cell[TaggedRows-sqlite-unknown-commit]",
        edit(
            ANSWERS + "_uncommittable",
            "if __held is None: ...",
            "if __held is None: return None",
        ),
    ),
    mutant(
        "5: PreparedTransactions answers success for a branch that was rolled back",
        PREPARED_TEST
        + "test_the_rest_of_a_half_done_commit_that_is_rolled_back_by_hand",
        in_deciding("self._check(...)", "pass"),
    ),
    mutant(
        "5: the driver takes unknown for an acknowledgement",
        COORDINATOR_TEST + "test_lost_or_contradicted_is_quarantined[answer0]",
        *(
            edit(
                DELIVERY + where,
                "__answer is None or __not_told",
                "__answer is None or __not_told "
                'or getattr(__answer, "refusal", "") == "unknown"',
            )
            for where in ("_acknowledges", "_postpone")
        ),
    ),
    mutant(
        "6: branches in doubt are not listed",
        ANSWERS_TEST + "test_the_list[TaggedRows-sqlite]",
        NOT_LISTED,
    ),
    mutant(
        "6: they are not listed, and an abort leaves no tombstone",
        KIT_TEST + "test_an_abort_of_something_unknown_is_remembered",
        NOT_LISTED,
        NO_TOMBSTONE,
    ),
    mutant(
        "7: begin leaves earlier undecided attempts active",
        LOG_TEST + "test_begin_aborts_every_undecided_attempt[sqlite]",
        BEGIN_ABORTS_NOBODY,
    ),
    mutant(
        "7: and with 14: an older attempt may be decided commit",
        LOG_TEST + "test_a_superseded_driver_is_told_abort[sqlite]",
        BEGIN_ABORTS_NOBODY,
        OLDER_MAY_COMMIT,
    ),
    mutant(
        "8: recovery aborts an attempt that is in time",
        RECOVERY_TEST + "test_a_current_attempt_is_left_to_its_driver",
        in_settle("self.log.expire(__id)", "self.log.decide(__id, Decision.ABORT)"),
    ),
    mutant(
        "8: the log takes an attempt that is in time for overdue",
        LOG_TEST + "test_only_what_is_overdue_expires[sqlite]",
        edit(LOG + "expire", "__clock >= __r.deadline", "True"),
    ),
    mutant(
        "8: recovery aborts without asking the log",
        RECOVERY_TEST
        + "test_an_abort_that_the_log_did_not_take_is_left_for_the_next_sweep"
        "[DecisionLogError]",
        in_settle(
            "self.log.expire(__r.id)",
            "dataclasses.replace(\n"
            "    __r, decision=Decision.ABORT, state=TransactionState.ABORTING\n"
            ")\n",
        ),
    ),
    mutant(
        "8: the driver aborts without asking the log",
        COORDINATOR_TEST
        + "test_an_undecided_error_after_a_commit_that_stands_never_aborts",
        edit(
            COORDINATOR + "fail",
            "decide_abort(__log, __r, ...)",
            "dataclasses.replace(__r, decision=Decision.ABORT)",
        ),
    ),
    mutant(
        "8: the driver takes a log that does not answer for an abort",
        GUARDS_TEST + "test_an_abort_that_the_log_did_not_take_is_not_sent"
        "[DecisionLogError]",
        edit(
            COORDINATOR + "fail",
            "decide_abort(__log, __r, ...)",
            "decide_abort(__log, __r, ...) "
            "or dataclasses.replace(__r, decision=Decision.ABORT)",
        ),
    ),
    mutant(
        "9: a log that cannot be read looks empty to recovery",
        RECOVERY_TEST + "test_a_log_that_fails_half_way_means_leave_alone",
        edit(RECOVERY + "_read", "raise", "continue"),
    ),
    mutant(
        "9: a record that does not match its checksum is believed",
        SQL_TEST + "test_an_edited_record_is_refused[sqlite-run]",
        edit("store/log/records.py::_record", "checksum_of(__r) == __kept", "True"),
    ),
    mutant(
        "9: forgotten is taken for done without a look into the log",
        COORDINATOR_TEST + "test_lost_or_contradicted_is_quarantined[answer2]",
        edit(DELIVERY + "_is_closed", "return __answer", "return True"),
    ),
    mutant(
        "9: a log that cannot be read looks empty to the watcher",
        WATCHER_TEST + "test_without_the_log_nothing_is_said",
        edit(
            SURVEY + "survey_all",
            "__read = None",
            "__read = LogEvidence({}, {}, {}, {}, 0)",
        ),
    ),
    mutant(
        "9: the watcher reads the log before the lists",
        WATCHER_TEST + "test_what_begins_after_the_log_was_read_is_no_orphan",
        edit(
            SURVEY + "survey_all",
            "__read = _read_log(__log, __first, __notes, __since)",
            "__read = _read_log(__log, __first, __notes, __since)\n"
            "__first = list_prepared(participants, __notes)\n",
        ),
    ),
    mutant(
        "9: what the watcher has seen once is enough",
        LEAVE_ALONE_TEST + "[landed after the first look]",
        edit(EVIDENCE + "_in_both", "__branch in __before", "__before is not None"),
    ),
    mutant(
        "9: half a list is evidence to the watcher",
        LEAVE_ALONE_TEST + "[half a first list]",
        edit(
            EVIDENCE + "_in_both",
            "not (__first.complete and __second.complete)",
            "False",
        ),
    ),
    mutant(
        "10: the driver does not deliver what it finds unfinished",
        GUARDS_TEST + "test_what_is_decided_is_delivered_before_the_next_batch",
        NO_RECOVERY_AT_START,
    ),
    mutant(
        "10: nor the batch that Spark replays",
        COORDINATOR_TEST + "test_a_crash_after_the_decision_is_committed_by_the_replay",
        NO_RECOVERY_AT_START,
        REPLAY_NOT_DELIVERED,
    ),
    mutant(
        "10: an abort that was not acknowledged is not sent again",
        COORDINATOR_TEST
        + "test_an_abort_that_nobody_heard_is_sent_again_before_the_next_batch",
        edit(COORDINATOR + "recover", "if __r.state is TransactionState.ABORTING: ..."),
    ),
    mutant(
        "10: recovery does not deliver",
        RECOVERY_TEST + "test_what_is_decided_is_delivered",
        in_settle("self.delivery.send_once(__r)", "{}"),
    ),
    mutant(
        "10: the driver gives up after the first try",
        COORDINATOR_TEST + "test_waiting_is_the_default_and_backs_off",
        edit(DELIVERY + "commit", "give_up and __tries >= __inline", "True"),
    ),
    mutant(
        "11: the log finishes what somebody has not acknowledged",
        LOG_TEST + "test_finished_only_after_every_acknowledgement"
        "[sqlite-commit-committed]",
        FINISH_UNHEARD,
    ),
    mutant(
        "11: the last acknowledgement finishes what another has not acknowledged",
        LOG_TEST + "test_an_acknowledgement_that_is_not_the_last_closes_nothing"
        "[sqlite]",
        edit(STATEMENTS + "acknowledge_last", "~__others", "sa.true()"),
    ),
    mutant(
        "11: and the driver asks for it",
        COORDINATOR_TEST + "test_a_crash_between_two_commits_is_finished",
        FINISH_UNHEARD,
        DELIVERED_UNHEARD,
    ),
    mutant(
        "11: no answer counts as an acknowledgement",
        COORDINATOR_TEST + "test_a_crash_between_two_commits_is_finished",
        edit(
            DELIVERY + "_postpone",
            "self._log.postpone(__r.id, __name, ...)\nreturn __reason\n",
            "self._log.acknowledge(__r.id, __name)\nreturn None\n",
        ),
    ),
    mutant(
        "12: forgotten_through takes prepared branches with it",
        ANSWERS_TEST + "test_a_prepared_branch_outlives_forgotten_through"
        "[TaggedRows-sqlite]",
        in_raise(
            '__b.delete().where(*__below, __b.c.state != "prepared")',
            "__b.delete().where(*__below)",
        ),
    ),
    mutant(
        "12: and in PreparedTransactions what it says of them",
        PREPARED_TEST + "test_forgotten_through_drops_outcomes_and_what_never_happened",
        edit(
            EXTERNAL + "raise_forgotten_through",
            "b.delete().where(b.c.tag.in_(__gone))",
            "b.delete().where(*below)",
        ),
    ),
    mutant(
        "12: a prepared branch is dropped when it is an hour old",
        DURABLE_TEST + "test_a_prepared_branch_waits_for_ever[sqlite]",
        edit(
            JOURNAL + "add_prepared",
            "__since = self.clock()",
            "since = self.clock()\n"
            "b = self.tables.branch\n"
            "connection.execute(\n"
            "    b.delete().where(\n"
            '        b.c.state == "prepared", b.c.since < self.clock() - 3600\n'
            "    )\n"
            ")\n",
        ),
    ),
    mutant(
        "12: the sweeper takes the rows of prepared branches",
        DURABLE_TEST + "test_a_prepared_branch_waits_for_ever[sqlite]",
        edit(
            TAGGED + "_next_doomed",
            "sa.select(__h.c.tag, __h.c.doomed).where(\n"
            "    __h.c.doomed.is_not(None), __newer\n"
            ")\n",
            "sa.select(\n"
            '    __h.c.tag, sa.func.coalesce(__h.c.doomed, 9).label("doomed")\n'
            ").where(__newer)\n",
        ),
    ),
    mutant(
        "13: SQLite: a prepare does not flush",
        DURABLE_TEST + "test_each_answer_waits_for_the_disk[sqlite]",
        edit(
            PARTICIPANT_DATABASE + "Database.upload",
            "self.write()",
            "self.relaxed()",
        ),
    ),
    mutant(
        "13: PostgreSQL: a prepare does not flush",
        DURABLE_TEST + "test_each_answer_waits_for_the_disk[postgresql]",
        edit(
            POSTGRESQL + "PostgreSQL.upload",
            "self.write()",
            "self.relaxed()",
        ),
    ),
    mutant(
        "13: SQLite: commit and abort do not flush",
        DURABLE_TEST + "test_each_answer_waits_for_the_disk[sqlite]",
        edit(
            TAGGED + "deciding",
            "self.journal.database.write(...)",
            "self.journal.database.relaxed(...)",
        ),
    ),
    mutant(
        "13: PostgreSQL: a role that does not flush is not overruled",
        DURABLE_TEST + "test_a_role_that_does_not_flush_is_overruled",
        NOT_OVERRULED,
    ),
    mutant(
        "13: PreparedTransactions: a seal without branches is not flushed",
        PREPARED_TEST + "test_flushes[0]",
        in_deciding(
            "if flushed_by_branch: ...\nelse: ...",
            "self._database.skip_flush(connection)",
        ),
    ),
    mutant(
        "14: an older attempt may be decided commit",
        SQL_TEST + "test_an_attempt_with_a_newer_one_cannot_commit[sqlite]",
        OLDER_MAY_COMMIT,
    ),
    mutant(
        "14: and a decision may turn",
        LOG_TEST + "test_a_superseded_driver_is_told_abort[sqlite]",
        OLDER_MAY_COMMIT,
        DECIDED_AGAIN,
        ABORTING_MAY_COMMIT,
    ),
    mutant(
        "15: the driver does as it wanted, not as the log says",
        COORDINATOR_TEST + "test_a_superseded_driver_obeys_what_stands",
        in_asking(
            "return __log.decide(__r.id, Decision.COMMIT, __receipts)",
            "import dataclasses\n"
            "__log.decide(__r.id, Decision.COMMIT, __receipts)\n"
            "return dataclasses.replace(\n"
            "    __r, receipts=__receipts, decision=Decision.COMMIT\n"
            ")\n",
        ),
    ),
    mutant(
        "15: a decide without an answer is taken for abort",
        COORDINATOR_TEST + "test_a_decide_without_an_answer_is_asked_again",
        in_asking("__last = error", "return None"),
    ),
    mutant(
        "15: a decide without an answer is not asked again",
        COORDINATOR_TEST + "test_a_decide_without_an_answer_is_asked_again",
        in_asking("itertools.islice(__tries, __most)", "itertools.islice(__tries, 1)"),
    ),
    mutant(
        "15: a driver that waits does not look into the log again",
        GUARDS_TEST + "test_who_waits_for_an_acknowledgement_looks_into_the_log",
        edit(DELIVERY + "commit", "if __tries > 1: ..."),
    ),
    mutant(
        "16: seals above forgotten_through are dropped",
        DURABLE_TEST + "test_what_is_sealed_is_kept_above_forgotten_through[sqlite]",
        in_raise("b.c.batch <= __to", "b.c.batch <= __to + 1"),
        in_raise("t.c.batch <= __to", "t.c.batch <= __to + 1"),
    ),
    mutant(
        "16: tombstones are dropped whatever forgotten_through",
        DURABLE_TEST + "test_what_is_sealed_is_kept_above_forgotten_through[sqlite]",
        in_raise("(__of, t.c.batch <= __to)", "(__of,)"),
    ),
    mutant(
        "17: the newest batch is forgotten",
        LOG_TEST + "test_the_newest_batch_is_never_forgotten[sqlite]",
        NEWEST_FORGOTTEN,
    ),
    mutant(
        "17: a batch at forgotten_through may begin",
        LOG_TEST + "test_a_batch_at_forgotten_through_is_refused[sqlite]",
        BEGIN_BELOW_FORGOTTEN_THROUGH,
    ),
    mutant(
        "17: a batch at forgotten_through may be decided",
        SQL_TEST + "test_nothing_is_decided_at_forgotten_through[sqlite]",
        DECIDE_BELOW_FORGOTTEN_THROUGH,
    ),
    mutant(
        "17: all three",
        GUARDS_TEST + "test_a_batch_that_was_forgotten_is_not_written_again",
        NEWEST_FORGOTTEN,
        BEGIN_BELOW_FORGOTTEN_THROUGH,
        DECIDE_BELOW_FORGOTTEN_THROUGH,
    ),
    mutant(
        "18: the index of commits is not unique",
        SQL_TEST + "test_a_second_commit_does_not_fit_into_the_table[sqlite]",
        NO_UNIQUE_COMMIT,
    ),
    mutant(
        "18: begin does not recognise a replay",
        LOG_TEST + "test_a_committed_batch_is_a_replay[sqlite]",
        NO_REPLAY,
    ),
    mutant(
        "18: decide does not see the committed attempt",
        SQL_TEST + "test_a_committed_batch_cannot_commit_again[sqlite]",
        COMMITTED_IS_NO_RIVAL,
    ),
    mutant(
        "18: a participant commits another attempt of a batch",
        KIT_TEST + "test_a_batch_is_committed_once",
        COMMITS_ANOTHER_ATTEMPT,
    ),
    mutant(
        "18: a participant prepares another attempt of a committed batch",
        ANSWERS_TEST + "test_an_empty_commit_counts_as_the_committed_attempt"
        "[TaggedRows-sqlite]",
        PREPARES_ANOTHER_ATTEMPT,
    ),
    mutant(
        "18: all of them",
        "fencing/test_two_drivers.py::test_a_replayed_batch_is_applied_once",
        NO_UNIQUE_COMMIT,
        NO_REPLAY,
        COMMITTED_IS_NO_RIVAL,
        COMMITS_ANOTHER_ATTEMPT,
        PREPARES_ANOTHER_ATTEMPT,
    ),
    mutant(
        "19: a prepare at or below forgotten_through is taken",
        ANSWERS_TEST + "test_every_cell[TaggedRows-sqlite-forgotten-prepare same]",
        edit(ANSWERS + "_closed", "if __seen.forgotten: ...", "if False: ..."),
    ),
    mutant(
        "19: forgotten_through may fall",
        KIT_TEST + "test_forgotten_through_never_falls",
        in_raise(
            "__to <= __seen.forgotten_through", "__to == __seen.forgotten_through"
        ),
    ),
    mutant(
        "19: it is raised in a local transaction of its own",
        DURABLE_TEST + "test_a_request_that_fails_at_any_statement_changes_nothing"
        "[sqlite-commit]",
        in_raise(
            "__c.execute(update.values(forgotten_through=__to))",
            "__c.execute(update.values(forgotten_through=__to))\n"
            '__c.exec_driver_sql("COMMIT")\n'
            '__c.exec_driver_sql("BEGIN")\n',
        ),
    ),
    mutant(
        "19: participants are told forgotten_through that is not durable",
        SQL_TEST + "test_participants_are_told_forgotten_through_that_is_durable"
        "[sqlite]",
        edit(
            STATEMENTS + "load_transactions",
            "__a.c.durable_forgotten_through",
            "__a.c.forgotten_through",
        ),
    ),
    mutant(
        "20: a prepare does not look at seal and forgotten_through again",
        ANSWERS_TEST + "test_an_upload_whose_transaction_is_sealed_votes_abort"
        "[TaggedRows-sqlite-forgotten_through]",
        NOT_LOOKED_AT_AGAIN,
    ),
    mutant(
        "20: nor at what came while its rows were written",
        "contract/test_answers_lock.py::"
        "test_what_comes_while_its_rows_are_written_is_seen[TaggedRows-postgresql]",
        NOT_LOOKED_AT_AGAIN,
    ),
    mutant(
        "20: TaggedRows looks without the lock",
        LOCK_TEST + "test_a_decision_waits_for_the_end_of_a_prepare[abort-TaggedRows]",
        edit(TAGGED + "prepare", "__database.shared_lock(...)", "pass"),
    ),
    mutant(
        "20: PreparedTransactions looks without its lock",
        LOCK_TEST + "test_a_decision_waits_for_the_end_of_a_prepare"
        "[abort-PreparedTransactions]",
        edit(
            EXTERNAL + "ExternalBranches.prepare",
            "self._locks.shared_session_lock(...)",
            "contextlib.nullcontext()",
        ),
    ),
    mutant(
        "20: PreparedTransactions does not obey what it sees",
        PREPARED_TEST + "test_an_abort_ends_a_prepare_between_two_of_its_statements",
        edit(EXTERNAL + "ExternalBranches.prepare", "__answer is None", "True"),
    ),
    mutant(
        "begin first: tasks run before their attempt is on record",
        COORDINATOR_TEST + "test_participants_are_on_record_before_anybody_is_asked",
        in_begin("change.add(...)"),
    ),
    mutant(
        "decided once: a decision may turn",
        LOG_TEST + "test_a_decision_is_written_once[sqlite-abort-commit]",
        DECIDED_AGAIN,
        ABORTING_MAY_COMMIT,
    ),
    mutant(
        "decided once: aborting may become committing",
        "unit/test_vocabulary.py::test_a_decision_never_turns",
        ABORTING_MAY_COMMIT,
    ),
    mutant(
        "one at a time: "
        "PostgreSQL: begin, decide and forget do not lock the application",
        SQL_TEST + "test_every_change_locks_its_application_first",
        edit(STATEMENTS + "LOCK_APPLICATION", "__select.with_for_update()", "__select"),
    ),
    mutant(
        "one at a time: SQLite: begin and decide do not lock before they read",
        SQL_TEST + "test_begin_decide_and_forget_come_one_after_another[sqlite-decide]",
        edit_text(SQLITE_ENGINE + "_WRITE", "BEGIN IMMEDIATE", "BEGIN"),
    ),
    mutant(
        "tombstone: an abort of what is unknown leaves nothing",
        KIT_TEST + "test_an_abort_of_something_unknown_is_remembered",
        NO_TOMBSTONE,
    ),
    mutant(
        "seal: a commit does not seal",
        ANSWERS_TEST + "test_an_empty_commit_counts_as_the_committed_attempt"
        "[Outbox-sqlite]",
        edit(
            JOURNAL_STATEMENTS + "_make_writes",
            "__seal.values(seal=__outcome, resolved_because=__because)",
            "__seal.values(resolved_because=__because)",
        ),
    ),
    mutant(
        "not named: a commit leaves branches prepared that it does not name",
        ANSWERS_TEST + "test_a_branch_that_is_not_named_aborts[Outbox-sqlite]",
        edit(JOURNAL + "seal", "self._abort(__c, __losers)", "pass"),
        edit(
            JOURNAL + "seal",
            "execute(__c, __writes, __values)",
            "execute(__c, __writes, __values)\n"
            "prepared = b.update().where(b.c.tag.in_(list(losers)))\n"
            "__c.execute(prepared.values(state='prepared', sealed=None))\n",
        ),
    ),
    mutant(
        "begun from what was read: an attempt that began since is superseded",
        LOG_TEST + "test_an_attempt_that_is_not_the_expected_one_is_not_begun[sqlite]",
        edit(LOG + "begin", "rules.check_attempt(...)", "pass"),
    ),
    mutant(
        "launch: a resource that was withdrawn before the begin is launched",
        "launch/test_operator.py::"
        "test_a_resource_that_another_operator_has_withdrawn_is_not_launched",
        edit("launch/launching.py::launch", "wait_for(is_wanted, ...)", "pass"),
    ),
    mutant(
        "launch: a job starts beside pods of the one before",
        LAUNCH_TEST + "test_a_pod_that_does_not_end_holds_the_start_up",
        edit(STOPPING, "late or __pods", "late"),
    ),
    mutant(
        "launch: it starts before a controller has seen the stop",
        LAUNCH_TEST + "test_a_controller_that_is_late_holds_the_start_up[Deployment]",
        edit(STOPPING, "not _is_stopped(item)", "False"),
    ),
    mutant(
        "launch: a repeated commit starts what has run and is gone",
        LAUNCH_TEST + "test_a_late_commit_starts_nothing_twice",
        edit(
            "launch/suspended_job.py::SuspendedJob.commit",
            "started is not None and started >= transaction",
            "False",
        ),
    ),
    mutant(
        "launch: a late commit sets the release tag back",
        LAUNCH_TEST + "test_a_late_commit_sets_no_tag_back[0-the newest]",
        edit(
            "launch/built_image.py::BuiltImage.commit", "_is_later(__s, __h)", "False"
        ),
    ),
    mutant(
        "launch: a rollback deletes an image that is equal to another's",
        LAUNCH_TEST + "test_images_that_are_equal_have_tags_of_their_own",
        edit(
            "launch/built_image.py::BuiltImage.pre_commit",
            "pushed.staged_by(transaction)",
            "pushed",
        ),
        edit(
            "launch/built_image.py::_unstage",
            "manifest.transaction != transaction",
            "False",
        ),
    ),
    mutant(
        "half done: "
        "PreparedTransactions does not go on with a commit that was cut short",
        PREPARED_TEST + "test_a_commit_of_many_branches_that_is_killed_half_way",
        in_deciding(
            "yield __c, self.journal.read(__c, __id)",
            "row = self.journal.read(__c, __id)\nyield __c, row\n",
        ),
        in_deciding("self._decided(...)", "[] if row.seal else self._decided(...)"),
    ),
    mutant(
        "everybody: a participant without branches is not told the commit",
        GUARDS_TEST + "test_a_participant_without_branches_is_told_the_commit",
        edit(
            DELIVERY + "_ask_all",
            "{__n: (__n, __to[__n]) for __n in __r.pending if __n in __to}",
            "{\n"
            "    __n: (__n, __to[__n])\n"
            "    for __n in __r.pending\n"
            "    if __n in __to and (__r.chosen(__n) or not __r.receipts)\n"
            "}\n",
        ),
        edit(
            DELIVERY + "send_once",
            "(__answers, __last) = self._ask_all(__r)",
            "(__answers, __last) = self._ask_all(__r)\n"
            "for name in set(__r.pending) - set(__answers):\n"
            "    self._log.acknowledge(__r.id, name)\n",
        ),
    ),
    mutant(
        "forgotten_through: it passes an abort that was not acknowledged",
        LOG_TEST + "test_all_attempts_of_a_batch_go_together[sqlite]",
        edit_text(
            STATEMENTS + "_MAY_GO",
            "(finished IS NULL OR",
            "(finished IS NULL AND state != 'aborting' OR",
        ),
    ),
    mutant(
        "an answer counts: 200 counts whatever transaction it names",
        TRANSPORT_TEST + "test_anything_else_is_no_answer[another transaction]",
        edit(
            "wire/contract.py::read_answer",
            '__item.get("transaction_id") == __id',
            "True",
        ),
    ),
    mutant(
        "rejects: a task that has lost a row votes commit",
        REJECTS_TEST + "test_a_partition_that_would_lose_a_row_aborts",
        edit(
            "sinks/rejecting.py::_keep",
            "count_rows(__receipts) + len(__rejected) != __kept.count",
            "False",
        ),
    ),
    mutant(
        "rejects: a row is rejected for one of another transaction in doubt",
        REJECTS_TEST
        + "test_a_row_in_doubt_of_another_transaction_rejects_none[sqlite]",
        edit(
            "participant/resources/rejected_rows.py::_is_own",
            "self._goes_in(connection, rows, is_hidden & others)",
            "[]",
        ),
    ),
    mutant(
        "relay: a transaction is published before it is begun on record",
        RELAY_TEST
        + "test_it_is_there_once_wherever_its_process_ends[sqlite-committed]",
        edit(PUBLICATIONS + "begin", "self._put(__c, BEGUN, __p)"),
    ),
    mutant(
        "relay: it is confirmed before it is published",
        KILLED_RELAY_TEST + "[sqlite-begun]",
        edit(
            PUBLISHER + "_publish",
            "self._relay.publish(__kept)",
            "self._publications.confirm(self._holder, publication.position)\n"
            "self._relay.publish(__kept)\n",
        ),
    ),
    mutant(
        "relay: what is begun is published again, whatever the position",
        RELAY_TEST
        + "test_it_is_there_once_wherever_its_process_ends[sqlite-committed]",
        edit(
            PUBLISHER + "_take_over",
            "self._publications.confirm(self._holder, __b)",
            "self._publications.withdraw(self._holder)",
        ),
    ),
    mutant(
        "relay: a position is compared by its number alone",
        OTHER_POSITION_TEST + "[sqlite-digest]",
        edit(
            PUBLISHER + "_take_over",
            "begun is not None and position == begun",
            "begun is not None and position and position.number == begun.number",
        ),
    ),
    mutant(
        "relay: a position below the confirmed one is taken",
        OTHER_POSITION_TEST + "[sqlite-below]",
        edit(
            PUBLISHER + "_take_over",
            "position != confirmed",
            "position is None or position.number > confirmed.number",
        ),
    ),
    mutant(
        "relay: a position above the begun one is taken",
        OTHER_POSITION_TEST + "[sqlite-above]",
        edit(
            PUBLISHER + "_take_over",
            "position != confirmed",
            "position is None or position.number < confirmed.number",
        ),
    ),
    mutant(
        "relay: a position that is gone is written anew although something is begun",
        OTHER_POSITION_TEST + "[sqlite-gone]",
        edit(
            PUBLISHER + "_take_over",
            "position is None and is_new",
            "position is None",
        ),
    ),
    mutant(
        "relay: a position that is gone is written anew although something was sent",
        RELAY_TEST + "test_a_position_that_is_gone_stops_the_relay"
        "[sqlite-waits2-send_again-orders.2.1-then2]",
        edit(
            PUBLISHER + "_take_over",
            "begun is None and not confirmed.number",
            "begun is None",
        ),
    ),
    mutant(
        "relay: it goes on with a store that went back",
        RELAY_ERRORS_TEST
        + "test_a_replica_that_is_behind_publishes_nothing_again[sqlite-confirmed]",
        edit(
            PUBLICATIONS + "begin",
            "BEGUN in on_record or on_record[CONFIRMED] != confirmed",
            "BEGUN in on_record",
        ),
    ),
    mutant(
        "relay: it confirms in a store that went back",
        RELAY_ERRORS_TEST
        + "test_a_replica_that_is_behind_publishes_nothing_again[sqlite-committed]",
        CONFIRMS_ANOTHER_POSITION,
    ),
    mutant(
        "relay: after an error of its database it believes what it knew",
        RELAY_ERRORS_TEST
        + "test_an_error_of_the_database_costs_a_pause[sqlite-answer]",
        edit(TURNS + "_start_over", "self._forget()"),
    ),
    mutant(
        "relay: after a publication that failed the position is not read",
        REFUSED_TEST,
        edit(
            PUBLISHER + "_publish",
            "self._is_taken_over = False\nself._held = -float('inf')\n...",
            "self._publications.withdraw(self._holder)\n...",
        ),
    ),
    mutant(
        "relay: it publishes on after another process took over",
        RELAY_TEST + "test_a_relay_that_lost_the_lease_publishes_no_further[sqlite]",
        edit(
            PUBLISHER + "_publish",
            "dataclasses.replace(__p, keep=self._keep_on)",
            "__p",
        ),
    ),
    mutant(
        "relay: it confirms after another process took over",
        SLEEPING_RELAY_TEST + "[sqlite-committed]",
        edit(
            PUBLICATIONS + "_held",
            "if __c.execute(__m).scalar_one() != __h: ...",
        ),
        CONFIRMS_ANOTHER_POSITION,  # it alone would hold it back
    ),
    mutant(
        "relay: an application's later transaction overtakes one that failed",
        REFUSED_TEST,
        edit(PUBLICATIONS + "_first", "sa.func.min(__b)", "sa.func.max(__b)"),
    ),
    mutant(
        "relay: what is published and not deleted yet is published again",
        RELAY_TEST + "test_a_large_publication_is_read_and_deleted_in_portions[sqlite]",
        edit(
            PUBLICATIONS + "_first",
            "(q.application == __a, q.published == 0)",
            "(q.application == __a,)",
        ),
        STORED_IN_PART,
    ),
    mutant(
        "relay: rows are deleted before they are published",
        KILLED_RELAY_TEST + "[sqlite-begun]",
        edit(
            PUBLICATIONS + "delete_published",
            "sa.select(q.tag).where(q.published == _DONE).limit(1)",
            "sa.select(q.tag).order_by(q.batch.desc()).limit(1)",
        ),
    ),
    mutant(
        "relay: rows are deleted before readers can pass them",
        RELAY_TEST + "test_what_readers_do_not_see_is_said[sqlite]",
        edit(
            PUBLICATIONS + "delete_published",
            "sa.select(q.tag).where(q.published == _DONE).limit(1)",
            "sa.select(q.tag).where(q.published != 0).limit(1)",
        ),
    ),
    mutant(
        "relay: a part of what was committed is published as if it were all",
        RELAY_TEST + "test_what_is_stored_in_part_is_not_published[sqlite]",
        STORED_IN_PART,
    ),
    mutant(
        "relay: what is begun and confirmed is not flushed",
        DURABLE_TEST + "test_what_a_relay_notes_waits_for_the_disk[sqlite]",
        edit(
            PUBLICATIONS + "_held", "self.queue.deciding()", "self._database.relaxed()"
        ),
    ),
    mutant(
        "relay: Kafka: the position is read, and nobody is fenced",
        KAFKA_TEST + "test_it_fences_before_it_reads_the_position",
        edit(KAFKA_RELAY + "take_over", "self._producer.init_transactions(...)"),
    ),
    mutant(
        "relay: Kafka: the position is read where readers are held back",
        KAFKA_TEST + "test_a_position_is_not_read_where_readers_are_held_back",
        edit("kafka/broker.py::Broker.last_value", "if __s < __e: ..."),
    ),
    mutant(
        "relay: Kafka: a commit is taken for sent before its end is written",
        KAFKA_TEST + "test_nothing_is_sent_whose_end_is_lost",
        edit(KAFKA_RELAY + "_publish", "self._wait_for_end()"),
    ),
    mutant(
        "relay: what a person has decided is not written to the broker",
        RELAY_TEST
        + "test_a_store_that_was_put_back_stops_the_relay[send_again-orders.3.1-then2]",
        edit(
            PUBLISHER + "_take_over",
            "SIGNED in __r or (position is None and is_new)",
            "position is None and is_new",
        ),
    ),
)


def table(mutants: Iterable[Mutant]) -> str:
    """Return the table in Markdown, as it stands in `tests/README.md`."""
    rows = [f"| {m.rule} | {m.words} | `{m.test}` |" for m in mutants]
    head = ["| rule | taken out | the test that turns red |", "|---|---|---|"]
    return "\n".join([*head, *rows])
