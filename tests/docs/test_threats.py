"""SECURITY.md says what each token can do at worst, and which test holds that."""

from __future__ import annotations

import re
from importlib.resources import files

import yaml
from manual import ROOT, rows

from tracing_2pc.core.access import Role

THREATS = rows((ROOT / "SECURITY.md").read_text(), "| token | at worst | test |")


def test_each_line_has_its_test():
    """Every role is there, and every test that is named exists."""
    tokens = [token for token, _, _ in THREATS]
    assert {str(role) for role in Role} <= {*tokens}
    for _, _, named in THREATS:
        file, _, test = named.strip("`").partition("::")
        text = (ROOT / "tests" / file).read_text()
        assert re.search(rf"^def {test}\(", text, re.M), named


def test_what_the_service_account_of_launches_may():
    """Rights in its own namespace, each by name; no Secret, and no pod of its own."""
    text = files("tracing_2pc.launch").joinpath("operator.yaml").read_text()
    made = [one for one in yaml.safe_load_all(text) if one]
    assert {one["kind"] for one in made} >= {"Role", "RoleBinding"}
    assert not {one["kind"] for one in made} & {"ClusterRole", "ClusterRoleBinding"}
    for rule in next(one for one in made if one["kind"] == "Role")["rules"]:
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        assert "secrets" not in rule["resources"]
        assert "pods" not in rule["resources"] or rule["verbs"] == ["list"]
