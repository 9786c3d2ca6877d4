"""States, ids, receipts, errors and settings: what everything else relies on."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.branches import committing
from support.texts import texts

from tracing_2pc.console.board import describe_place
from tracing_2pc.core import errors
from tracing_2pc.core.errors import ConfigurationError, TwoPhaseError
from tracing_2pc.core.links import links_of, places_of
from tracing_2pc.core.model import (
    BranchContext,
    BranchId,
    Receipt,
    TransactionId,
    branch_receipts,
    check_application,
)
from tracing_2pc.core.settings import Settings, read_secret, seconds
from tracing_2pc.core.states import (
    FINAL,
    TRANSACTION_TABLE,
    UNFINISHED,
    Decision,
    TransactionEvent,
    TransactionState,
    Vote,
    advance,
)

TEXTS = texts("unit")
WHOLE = TEXTS["expected a whole number"].format

# --- states --------------------------------------------------------------------------

UNDER_WAY = {"finish without": "concluded", "quarantine": "quarantined"}
TRANSACTION_MOVES = {
    "active": {"decide commit": "committing", "decide abort": "aborting"},
    "committing": {"finish": "committed", **UNDER_WAY},
    "aborting": {"finish": "aborted", **UNDER_WAY},
    "quarantined": {
        "resume commit": "committing",
        "resume abort": "aborting",
        "conclude": "concluded",
    },
}


def test_a_transaction_moves_only_like_this():
    """Every state meets every event: the listed move, or `KeyError`."""
    moves: dict[str, dict[str, str]] = {}
    for state, event in itertools.product(TransactionState, TransactionEvent):
        with contextlib.suppress(KeyError):
            moves.setdefault(str(state), {})[str(event)] = advance(state, event)
    assert moves == TRANSACTION_MOVES


def reachable(state: TransactionState, table: Any = TRANSACTION_TABLE) -> set[Any]:
    seen = {state}
    for _ in TransactionState:
        seen |= {after for (before, _), after in table.items() if before in seen}
    return seen


def test_a_decision_never_turns():
    """From committing no path leads to aborted, but through a person's resume."""
    turning = {TransactionEvent.RESUME_COMMIT, TransactionEvent.RESUME_ABORT}
    straight = {k: v for k, v in TRANSACTION_TABLE.items() if k[1] not in turning}
    for start, never in (("committing", "aborted"), ("aborting", "committed")):
        assert TransactionState(never) not in reachable(
            TransactionState(start), straight
        )


def test_final_states_are_left_by_nothing():
    """And all others can still reach one of them."""
    for state in TransactionState:
        leaves = {s for s, _ in TRANSACTION_TABLE}
        assert (state in FINAL) == (state not in leaves)
        assert reachable(state) & FINAL
    assert {s for s, e in TRANSACTION_TABLE if e is TransactionEvent.FINISH} == (
        UNFINISHED
    )


@pytest.mark.parametrize("word", [*Decision, *Vote, *TransactionState], ids=repr)
def test_enums_are_their_words(word):
    """Stored, sent and shown as text; never as an ordinal."""
    assert str(word) == f"{word}" == word.value == word
    assert pickle.loads(pickle.dumps(word)) is word


# --- ids -----------------------------------------------------------------------------

applications = st.from_regex(r"\A[a-z0-9][a-z0-9-]{0,39}\Z")
ordinals = st.integers(0, 10**18 - 1)


@given(
    st.builds(TransactionId, applications, ordinals, st.integers(1, 10**9 - 1)),
    st.builds(BranchId, ordinals, ordinals),
)
def test_an_id_reads_what_it_writes(identity, branch):
    """One spelling, there and back."""
    assert TransactionId.parse(str(identity)) == identity
    assert check_application(identity.application) == identity.application
    assert BranchId.parse(str(branch)) == branch


ODD = ["", "a", "a.1", "A.1.1", "a.01.1", "a.1.0", "a.1.01", "a.-1.1", "a.1.1.1"]
ODD += ["a.1.1\n", " a.1.1", "a.\u0661.1", "a.1.\u00b2", "-a.1.1", "a/b.1.1", "é.1.1"]
ODD += ["a" * 41 + ".1.1", "a.1" + "0" * 18 + ".1", "a.1.1" + "0" * 9, "a.1.1\x00"]


ODD_BRANCHES = ["", "1", "1.", "01.1", "1.01", "-1.1", "1.1.1", "\u0661.1"]


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [(TransactionId, text, TEXTS["a transaction's id"]) for text in ODD]
    + [(BranchId, text, TEXTS["a branch's id"]) for text in ODD_BRANCHES],
)
def test_an_id_has_no_second_spelling(kind, text, said):
    """Anything else is refused, and the error shows at most its beginning."""
    for times in (1, 100):
        with pytest.raises(ValueError, match=said) as refused:
            kind.parse(text * times)
        assert len(str(refused.value)) < 600


@given(st.text(max_size=60))
def test_reading_an_id_never_fails_otherwise(text):
    """Any text is an id or a `ValueError`; what is an id is spelled like itself."""
    for kind in (TransactionId, BranchId):
        with contextlib.suppress(ValueError):
            assert str(kind.parse(text)) == text


def test_ids_sort_as_numbers():
    """Batch 10 comes after batch 2."""
    ids = {TransactionId.parse(f"a.{n}.1") for n in (10, 2, 1)}
    assert [i.batch for i in sorted(ids)] == [1, 2, 10]


# --- records -------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
receipts = st.builds(
    Receipt,
    st.builds(BranchId, ordinals, ordinals),
    st.text(),
    st.integers(0),
    st.text(),
    st.sampled_from(Vote),
    json_values,
)


@given(receipts)
def test_a_receipt_survives_json_and_pickle(receipt):
    """From a task to the driver, vote and handle included."""
    assert Receipt.from_json(receipt.to_json()) == receipt
    assert pickle.loads(pickle.dumps(receipt)) == receipt


def test_a_branchs_context_survives_pickle():
    """A program may hand it to a process that writes the branch."""
    context = BranchContext(TransactionId("orders", 0, 1), BranchId(0, 1), ("a",), {})
    copy = pickle.loads(pickle.dumps(context))
    assert copy == context
    assert copy.stopping() is False


def test_a_record_knows_whom_to_tell_what():
    """Pending keeps the order on record; chosen are those who voted commit."""
    votes = {"a": Vote.COMMIT, "b": Vote.READ_ONLY}
    written = branch_receipts(BranchId(0, 1), 1, "", votes)
    about = {"participants": ("c", "b", "a"), "acknowledged": frozenset({"b"})}
    record = committing(TransactionId("orders", 1, 1), *written, **about)
    assert record.pending == ("c", "a")
    assert record.chosen("a") == written[:1]
    assert record.chosen("b") == record.chosen("c") == ()


# --- errors --------------------------------------------------------------------------

KINDS = [e for _, e in inspect.getmembers(errors, inspect.isclass)]
KINDS = [e for e in KINDS if issubclass(e, TwoPhaseError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_an_error_survives_pickle(kind):
    """Message, ids and whatever was added: a task raises it, the driver reads it."""
    names = set(inspect.signature(kind).parameters)
    given = {name: f"the {name}" for name in names - {"message", "detail"}}
    text = dict.fromkeys(names & {"message", "detail"}, "what happened")
    error = kind(**text, **given)
    error.hint = "added later"  # type: ignore[attr-defined]
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (kind, "what happened")
    assert vars(copy) == vars(error)
    assert {**given, "hint": "added later"}.items() <= vars(copy).items()
    assert {"transaction_id", "participant"} <= vars(copy).keys()


def test_unknown_is_never_failed():
    """Who catches "nothing was committed" or "unreachable" never catches in doubt."""
    for certain in (errors.AbortedError, errors.DecisionLogError):
        assert not issubclass(errors.DecisionUnknownError, certain)
        assert not issubclass(certain, errors.InDoubtError)
    assert issubclass(errors.DecisionUnknownError, errors.InDoubtError)
    assert issubclass(errors.CommitPendingError, errors.InDoubtError)


# --- settings ------------------------------------------------------------------------


def test_argument_over_environment_over_file(tmp_path):
    """The later one wins, for each setting by itself, and says where it is from."""
    (tmp_path / "tpc.toml").write_text(
        'stuck_after = "100s"\nsweep = "61s"\nlog = "sqlite:///file.db"\n'
    )
    settings = Settings.load(
        tmp_path / "tpc.toml",
        environ={"TPC_SWEEP": "62s", "TPC_LOG": "sqlite:///environment.db"},
        log="sqlite:///argument.db",
        pause=None,
    )
    found = {
        name: (getattr(settings, name), settings.origin(name))
        for name in ("log", "sweep", "stuck_after", "pause")
    }
    assert found == {
        "log": ("sqlite:///argument.db", "argument"),
        "sweep": (62.0, "TPC_SWEEP"),
        "stuck_after": (100.0, str(tmp_path / "tpc.toml")),
        "pause": (10.0, "default"),
    }


def test_the_file_is_found(tmp_path, monkeypatch):
    """TPC_CONFIG, else tpc.toml, else the table in pyproject.toml, else nothing."""
    monkeypatch.chdir(tmp_path)
    assert Settings.load(environ={}).sweep == 30
    (tmp_path / "pyproject.toml").write_text('[tool.tracing_2pc]\nsweep = "71s"\n')
    assert Settings.load(environ={}).sweep == 71
    (tmp_path / "tpc.toml").write_text('sweep = "72s"\n')
    assert Settings.load(environ={}).sweep == 72
    (tmp_path / "named.toml").write_text('sweep = "73s"\n')
    assert Settings.load(environ={"TPC_CONFIG": "named.toml"}).sweep == 73


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"request_timeout": 30}, ("safety_interval", "request_timeout")),
        ({"safety_interval": 300}, ("orphan_after", "safety_interval")),
        ({"stuck_after": 20}, ("stuck_after", "safety_interval")),
        ({"stuck_critical": 300}, ("stuck_critical", "stuck_after")),
        ({"pause": "60s"}, ("sweep", "pause")),
        ({"transaction_timeout": 5}, ("transaction_timeout", "request_timeout")),
        ({"inline_tries": 0}, ("inline_tries",)),
        ({"batch_records": 0}, ("batch_records",)),
    ],
)
def test_a_contradiction_names_the_pair(values, names):
    """Each value alone is plausible: the error names both, and where they are from."""
    with pytest.raises(ConfigurationError) as refused:
        Settings.load(environ={}, **values)
    text = str(refused.value)
    assert all(name in text for name in names)
    assert "argument" in text


def test_no_transaction_timeout_is_none():
    """Zero switches it off, and contradicts nothing."""
    assert Settings.load(environ={}, transaction_timeout=0).transaction_timeout == 0


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"sweep": "soon"}, r"sweep \(argument\): 'soon'"),
        ({"sweep": True}, TEXTS["expected a duration"]),
        ({"driver_path_bytes": "16 MiB"}, WHOLE(value="'16 MiB'")),
        ({"inline_tries": 1.5}, WHOLE(value=1.5)),
        ({"driver_path_bytes": -1}, TEXTS["too small"]),
        ({"swep": 3}, TEXTS["no such setting"]),
        ({"on_pending": "ask"}, TEXTS["wait or fail"]),
        ({"participants": '{"a": "http://x"}'}, TEXTS["a list of names and URLs"]),
        ({"participants": "a=http://x,b"}, TEXTS["a list of names and URLs"]),
        ({"participants": {"a b": "http://x"}}, TEXTS["what a participant's name is"]),
        ({"participants": {"a": "ftp://x"}}, TEXTS["no transport"]),
        ({"participants": {"a": "http://u:s3cret@x"}}, TEXTS["no password in a URL"]),
        ({"participants": {"a": "http://x/?token=1"}}, TEXTS["no query in a URL"]),
        ({"links": "a=http://x/?of=1,2"}, TEXTS["a list of names and URLs"]),
        ({"links": {"a b": "http://x"}}, TEXTS["what a link's name is"]),
        ({"links": {"a": "javascript://x/{trace}"}}, TEXTS["a link is http"]),
        ({"links": {"a": "http://u:s3cret@x/"}}, TEXTS["no password in a URL"]),
        ({"links": {"a": "http://x/{span}"}}, TEXTS["what a link may hold"]),
        ({"links": {"a": "http://x/{}"}}, TEXTS["a link's empty field"]),
        ({"links": {"a": "http://x/{trace!r}"}}, TEXTS["a link's odd field"]),
        ({"links": {"a": "http://x/{trace"}}, TEXTS["a link's open field"]),
        ({"links": {"a": "http://{transaction}.x/"}}, TEXTS["no field in a host"]),
        ({"links": {"a": "http://x/\x1b[31m"}}, TEXTS["no spaces in a link"]),
    ],
)
def test_a_wrong_value_is_named(values, why):
    """Which setting, where it is from, what was expected; never a secret."""
    with pytest.raises(ConfigurationError, match=why) as refused:
        Settings.load(environ={}, **values)
    assert "s3cret" not in str(refused.value)


def test_participants_from_the_environment():
    """Name=URL, separated by commas."""
    listed = "ledger=http://127.0.0.1:1/,notifier=https://n"
    settings = Settings.load(environ={"TPC_PARTICIPANTS": listed})
    assert settings.participants == {
        "ledger": "http://127.0.0.1:1",
        "notifier": "https://n",
    }


def test_links_are_filled_in():
    """One that needs a trace is left out where nothing was traced."""
    told = "jaeger=http://j/trace/{trace},spark=http://s/{application}?t={transaction}"
    links = Settings.load(environ={"TPC_LINKS": told}).links
    transaction = TransactionId("orders", 7, 1)
    spark = {"spark": "http://s/orders?t=orders.7.1"}
    assert links_of(links, transaction, None) == spark
    assert links_of(links, transaction, "ab") == {"jaeger": "http://j/trace/ab"} | spark


def test_each_link_has_a_place_to_begin_at():
    """A page as it is; a link to one transaction by the front page of its host."""
    templates = {"jaeger": "https://j:1/trace/{trace}", "grafana": "http://g/d/tpc"}
    jaeger, grafana = places_of(templates)
    assert jaeger == ("jaeger", "https://j:1/", "trace")
    assert grafana == ("grafana", "http://g/d/tpc", "")
    assert "spans" in describe_place(jaeger)
    assert TEXTS["one trace at a time"] in describe_place(jaeger._replace(name="mine"))
    assert describe_place(grafana._replace(name="mine")) == TEXTS["a link of one's own"]


def test_the_token_of_the_environment_is_not_a_setting():
    """TPC_TOKEN is the secret itself: it is never read into the settings."""
    settings = Settings.load(environ={"TPC_TOKEN": "s3cret"})
    assert "s3cret" not in repr(settings)
    assert settings.token == "env:TPC_TOKEN"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("250ms", 0.25), ("1.5s", 1.5), ("15 m", 900), ("2h", 7200), (7, 7)],
)
def test_durations_are_seconds(text, expected):
    """A number with a unit; without one from Python only."""
    assert seconds(text) == expected


def test_a_duration_without_a_unit_is_refused(tmp_path):
    """It may be meant in another one: in variables, options and files alike."""
    (tmp_path / "tpc.toml").write_text("keep_finished = 7\n")
    why = TEXTS["expected a duration"]
    with pytest.raises(ValueError, match=why):
        seconds("7")
    with pytest.raises(ConfigurationError, match=why):
        Settings.load(tmp_path / "tpc.toml", environ={})
    with pytest.raises(ConfigurationError, match=why):
        Settings.load(environ={"TPC_KEEP_FINISHED": "7"})


@pytest.mark.parametrize("wrong", ["", " ", "a\nb", "x" * 41, 7])
def test_an_environment_is_a_name(wrong):
    """It stands on each page: one line, and not long."""
    assert Settings.load(environ={"TPC_ENVIRONMENT": " eu 1 "}).environment == "eu 1"
    with pytest.raises(ConfigurationError, match="environment"):
        Settings.load(environ={}, environment=wrong)


def test_a_secret_is_given_by_reference(tmp_path, monkeypatch):
    """`env:` and `file:` are read where they are used; a literal is refused."""
    monkeypatch.setenv("TOKEN", " from-env\n")
    (tmp_path / "token").write_text("from-file\n")
    assert read_secret("env:TOKEN", "token") == "from-env"
    assert read_secret(f"file:{tmp_path}/token", "token") == "from-file"
    for missing in ("s3cret", "env:", "env:NOT_THERE", f"file:{tmp_path}/none"):
        with pytest.raises(ConfigurationError) as refused:
            read_secret(missing, "token")
        assert "s3cret" not in str(refused.value)
