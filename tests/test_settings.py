"""Settings: an argument goes before the environment, the environment before the file, the file before the default."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example
from hypothesis import given as for_all
from hypothesis import strategies as st

from tenuto import Tenuto
from tenuto.errors import Invalid
from tenuto.paths import home
from tenuto.settings import Settings, WorkerSettings, load, load_worker, without_password


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A working folder without a file, an environment without a word of ours."""
    for name in list(os.environ):
        if name.startswith("TENUTO_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_defaults_stand_where_nobody_says_otherwise() -> None:
    settings, worker = load(), load_worker()
    assert (settings.database, settings.retention_days, settings.embedded_stop) == (None, 90, "when_unused")
    assert (worker.queues, worker.lease_seconds, worker.poll_seconds) == (("default",), 30, 2)


def test_the_file_goes_before_the_default_the_environment_before_the_file_the_argument_before_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tenuto.toml").write_text("retention_days = 7\n[worker]\nslots = 3\n")
    assert (load().retention_days, load_worker().slots) == (7, 3)
    monkeypatch.setenv("TENUTO_RETENTION_DAYS", "8")
    monkeypatch.setenv("TENUTO_WORKER_SLOTS", "4")
    assert (load().retention_days, load_worker().slots) == (8, 4)
    assert (load(retention_days=9).retention_days, load_worker(slots=5).slots) == (9, 5)
    assert (load(retention_days=None).retention_days, load_worker(slots=None).slots) == (8, 4), "None is nothing said"


def test_the_file_may_lie_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "other" / "mine.toml"
    file.parent.mkdir()
    file.write_text('database = "postgresql://x/y"\n[worker]\nqueues = ["a", "b"]\n')
    monkeypatch.setenv("TENUTO_CONFIG", str(file))
    assert load().database == "postgresql://x/y"
    assert load_worker().queues == ("a", "b")


def test_a_health_check_finds_the_same_home_as_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It does without the machinery of the settings, and must not come to another answer."""
    answers = [(home(), load().home)]
    (tmp_path / "tenuto.toml").write_text('retention_days = 7\n[worker]\nname = "w"\n')
    answers.append((home(), load().home))
    (tmp_path / "tenuto.toml").write_text('home = "from-the-file"\n')
    answers.append((home(), load().home))
    (tmp_path / "other.toml").write_text('home = "~/from-another"\n')
    monkeypatch.setenv("TENUTO_CONFIG", str(tmp_path / "other.toml"))
    answers.append((home(), load().home))
    monkeypatch.setenv("TENUTO_HOME", "from-the-environment")
    answers += [(home(), load().home), (home("given"), load(home="given").home)]
    assert all(light == full for light, full in answers), answers
    assert len({light for light, _ in answers}) == 5, "only the file that says nothing of it leaves it as it was"


@pytest.mark.parametrize("text", ["home = 7", "home ="])
def test_a_home_that_is_none_is_refused_by_the_health_check_too(tmp_path: Path, text: str) -> None:
    (tmp_path / "tenuto.toml").write_text(text)
    for ask in (home, load):
        with pytest.raises(Invalid):
            ask()


def test_what_is_empty_is_not_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A variable of a compose file whose own value is missing: the default, or what the file says, and no third way."""
    settings, worker = load(), load_worker()
    for kind, prefix in ((Settings, "TENUTO_"), (WorkerSettings, "TENUTO_WORKER_")):
        for name in kind.model_fields:
            monkeypatch.setenv(f"{prefix}{name.upper()}", "")
    monkeypatch.setenv("TENUTO_CONFIG", "")
    assert (load(database="", home=""), load_worker(name="")) == (settings, worker)
    assert (load(database="").database, home(), home("")) == (None, settings.home, settings.home)
    (tmp_path / "tenuto.toml").write_text('home = "mine"\ndatabase = ""\n[worker]\nname = "w"\nqueues = ""\n')
    assert (home(), load().home, load().database) == (tmp_path / "mine", tmp_path / "mine", None)
    assert (load_worker().name, load_worker().queues) == ("w", ("default",))
    (tmp_path / "tenuto.toml").write_text('home = ""\n')
    assert home() == load().home == settings.home


def test_an_app_takes_its_settings_the_same_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TENUTO_DATABASE", "postgresql://env/x")
    monkeypatch.setenv("TENUTO_HOME", str(tmp_path / "env"))
    assert Tenuto().settings.database == "postgresql://env/x"
    assert Tenuto("postgresql://argument/x").settings.database == "postgresql://argument/x"
    assert Tenuto(home="~/x").settings.home == Path("~/x").expanduser()
    assert Tenuto().settings.home == tmp_path / "env"


@pytest.mark.parametrize("words", ["a,b", " a , b ,"])
def test_queues_may_be_given_in_one_word(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setenv("TENUTO_WORKER_QUEUES", words)
    assert load_worker().queues == ("a", "b")
    assert load_worker(queues=words).queues == ("a", "b")


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("TENUTO_RETENTION_DAYS", "many", "retention_days"),
        ("TENUTO_RETENTION_DAYS", "0", "retention_days"),
        ("TENUTO_RETENTION_DAYS", "nan", "retention_days"),
        ("TENUTO_SWEEP_SECONDS", "-1", "sweep_seconds"),
        ("TENUTO_LOG_LEVEL", "loud", "log_level"),
        ("TENUTO_CONNECTIONS", "nojson", "connections"),
        ("TENUTO_CONNECTIONS", "[" * 100_000, "connections"),
        ("TENUTO_CONNECTIONS", '{"hr": 5}', "connections.hr"),
        ("TENUTO_CONNECTIONS", "[]", "connections"),
        ("TENUTO_HOME", "~nobody-of-this-name/x", "home"),
        ("TENUTO_EMBEDDED_STOP", "maybe", "embedded_stop"),
        ("TENUTO_WORKER_SLOTS", "0", "slots"),
        ("TENUTO_WORKER_SLOTS", "1.5", "slots"),
        ("TENUTO_WORKER_LEASE_SECONDS", "0.1", "lease_seconds"),
        ("TENUTO_WORKER_GRACE_SECONDS", "-1", "grace_seconds"),
        ("TENUTO_WORKER_POLL_SECONDS", "inf", "poll_seconds"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_field_and_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Invalid) as refusal:
        (load_worker if name.startswith("TENUTO_WORKER_") else load)()
    assert refusal.value.field == field
    assert name in str(refusal.value)


def test_connections_may_be_given_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_CONNECTIONS", '{"hr": {"url": "postgresql://h/x", "any_login": true}}')
    assert load().connections["hr"].any_login


def test_connections_of_argument_environment_and_file_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tenuto.toml").write_text('[connections.hr]\nurl = "postgresql://file/x"\nany_login = true\n')
    monkeypatch.setenv("TENUTO_CONNECTIONS", '{"crm": {"url": "postgresql://env/x"}}')
    assert sorted(load().connections) == ["crm", "hr"]
    assert sorted(load(connections={"shop": {"url": "sqlite:///x"}}).connections) == ["crm", "hr", "shop"]
    monkeypatch.setenv("TENUTO_CONNECTIONS", '{"hr": {"url": "postgresql://env/x"}}')
    assert (load().connections["hr"].url, load().connections["hr"].any_login) == ("postgresql://env/x", True)


def test_connections_that_are_no_json_are_refused_also_where_others_stand_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tenuto.toml").write_text('[connections.hr]\nurl = "postgresql://file/x"\n')
    monkeypatch.setenv("TENUTO_CONNECTIONS", '{"crm": {"url": "postgresql://u:hush@h/x"')
    for others in ({}, {"connections": {"shop": {"url": "sqlite:///x"}}}):
        with pytest.raises(Invalid, match="TENUTO_CONNECTIONS") as refusal:
            load(**others)
        assert (refusal.value.field, refusal.value.__cause__) == ("connections", None)
        assert "hush" not in str(refusal.value)


@pytest.mark.parametrize(
    ("given", "field"), [({"slots": 0}, "slots"), ({"slot": 5}, "slot"), ({"queues": 5}, "queues")]
)
def test_a_wrong_argument_is_refused_in_the_same_words(given: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        load_worker(**given)
    assert refusal.value.field is not None
    assert refusal.value.field.split(".")[0] == field


def test_a_wrong_value_in_the_file_is_refused_by_its_field(tmp_path: Path) -> None:
    (tmp_path / "tenuto.toml").write_text("[worker]\nslots = 'many'\n")
    with pytest.raises(Invalid) as refusal:
        load_worker()
    assert refusal.value.field == "slots"
    assert "tenuto.toml" in str(refusal.value)


@pytest.mark.parametrize(
    "contents", [b"this is = not [toml", b'home = "\xff"\n', b"a = " + b"[" * 100_000, b"a = " + b"9" * 5000, None]
)
def test_a_file_that_cannot_be_read_is_refused_by_its_name(tmp_path: Path, contents: bytes | None) -> None:
    file = tmp_path / "tenuto.toml"
    file.mkdir() if contents is None else file.write_bytes(contents)
    for read in (load, load_worker, home):
        with pytest.raises(Invalid, match=r"tenuto\.toml") as refusal:
            read()
        assert refusal.value.remedy


def test_a_file_this_account_may_not_read_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "tenuto.toml").write_text("")
    (tmp_path / "tenuto.toml").chmod(0)
    me = os.geteuid()
    os.seteuid(me or 65534)  # root may read everything
    try:
        for read in (load, load_worker, home):
            with pytest.raises(Invalid, match=r"tenuto\.toml cannot be read"):
                read()
    finally:
        os.seteuid(me)


@pytest.mark.parametrize("text", ["worker = 5\n", "[[worker]]\nslots = 3\n"])
def test_a_worker_in_the_file_that_is_no_table_is_refused_by_its_field(tmp_path: Path, text: str) -> None:
    (tmp_path / "tenuto.toml").write_text(text)
    for read in (load, load_worker):
        with pytest.raises(Invalid, match=r"\[worker\] in tenuto\.toml") as refusal:
            read()
        assert refusal.value.field == "worker"


def test_a_file_that_was_named_and_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TENUTO_CONFIG", str(tmp_path / "nowhere.toml"))
    for read in (load, load_worker, home):
        with pytest.raises(Invalid, match="TENUTO_CONFIG"):
            read()


def test_a_word_in_the_file_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tenuto.toml").write_text("retention_day = 7\n")
    with pytest.raises(Invalid) as refusal:
        load()
    assert refusal.value.field == "retention_day"


def test_settings_do_not_change_once_read() -> None:
    with pytest.raises(Exception, match="frozen"):
        load().retention_days = 1


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hush@h/db",
        "postgresql://u:hu/sh@h/db",
        "postgresql://u:hu?sh@h/db",
        "postgresql://u@x:hush@h/db",
        "postgresql://u:hu?x=sh@h/db?password=hush",
        "postgresql://h:5432/db?password=hu@sh&x=y",
        "postgresql://h/db?password=hu&sh&x=y",
        "host=h password=hu&sh user=u",
        r"host=h password=hu\ sh user=u",
        "host=h password=hu sh user=u",
        "postgresql://h/db?user=u&password=hush&x=y",
        "postgresql://h/db?passw%6frd=hush",
        "host=h password=hush user=u",
        r"host=h password='hu \' sh' user=u",
        "host=h password = 'hush' user=u",
    ],
)
def test_the_password_of_an_address_is_not_shown(url: str) -> None:
    settings = load(database=url, connections={"hr": {"url": url}}, master_key="hush")
    for shown in (repr(settings), str(settings), str(settings.masked()), without_password(url)):
        assert "hu" not in shown
        assert "sh" not in shown.replace("one_shots", ""), shown
    assert without_password(url).partition("…")[2] or url.endswith("hush")


odd_passwords = st.text("/?#@:%'\"\\ \t\n&=+;[]Z", min_size=1)
"""The Z stands nowhere else: if it is seen, part of the password is."""


@for_all(odd_passwords)
@example("p?Z")
@example("p?Z=Z@Z&Z=/Z")
def test_no_part_of_an_odd_password_of_an_address_is_shown_and_all_else_is(password: str) -> None:
    around = "postgresql://user:", "@host:5432/base?sslmode=require&application_name=mine"
    assert without_password(password.join(around)) == "…".join(around)
    around = "postgresql://host:5432/base?user=u&password=", "&sslmode=require"
    shown = without_password(password.replace("&", "%26").join(around))
    assert shown in ("…".join(around), "postgresql://host:…&sslmode=require"), "5432 might be one's beginning"
    assert "@" in password or "base" in shown


@for_all(odd_passwords)
def test_no_part_of_an_odd_password_among_keywords_is_shown_and_all_else_is(password: str) -> None:
    escaped = re.sub(r"([\\'])", r"\\\1", password)
    bare = re.sub(r"([\\'\s])", r"\\\1", password)
    for written in (f"'{escaped}'", bare):
        around = "host=host password = ", " dbname=base user=user"
        assert without_password(written.join(around)) == "…".join(around)
