"""Settings: precedence of sources, validation errors and redaction of passwords."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenuto import Tenuto
from tenuto.errors import Invalid
from tenuto.paths import find_home
from tenuto.settings import Settings, WorkerSettings, load_settings, load_worker_settings, redact_password
from tests.support.errors import raises_code


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use a working directory without settings file and an environment without TENUTO variables."""
    for name in list(os.environ):
        if name.startswith("TENUTO_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_settings_have_defaults() -> None:
    settings, worker = load_settings(), load_worker_settings()
    assert (settings.database, settings.retention_days, settings.embedded_stop) == (None, 90, "when_unused")
    assert (worker.queues, worker.lease_seconds, worker.poll_seconds) == (("default",), 30, 2)


def test_settings_precedence_is_argument_environment_file_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tenuto.toml").write_text("retention_days = 7\n[worker]\nslots = 3\n")
    assert (load_settings().retention_days, load_worker_settings().slots) == (7, 3)
    monkeypatch.setenv("TENUTO_RETENTION_DAYS", "8")
    monkeypatch.setenv("TENUTO_WORKER_SLOTS", "4")
    assert (load_settings().retention_days, load_worker_settings().slots) == (8, 4)
    assert (load_settings(retention_days=9).retention_days, load_worker_settings(slots=5).slots) == (9, 5)
    unset = (load_settings(retention_days=None).retention_days, load_worker_settings(slots=None).slots)
    assert unset == (8, 4), "None counts as unset"


def test_settings_file_is_selected_by_tenuto_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "other" / "mine.toml"
    file.parent.mkdir()
    file.write_text('database = "postgresql://x/y"\n[worker]\nqueues = ["a", "b"]\n')
    monkeypatch.setenv("TENUTO_CONFIG", str(file))
    assert load_settings().database == "postgresql://x/y"
    assert load_worker_settings().queues == ("a", "b")


def test_find_home_returns_the_same_home_as_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Health checks use `find_home`, which does not load the settings module."""
    homes = [(find_home(), load_settings().home)]
    (tmp_path / "tenuto.toml").write_text('retention_days = 7\n[worker]\nname = "w"\n')
    homes.append((find_home(), load_settings().home))
    (tmp_path / "tenuto.toml").write_text('home = "from-the-file"\n')
    homes.append((find_home(), load_settings().home))
    (tmp_path / "other.toml").write_text('home = "~/from-another"\n')
    monkeypatch.setenv("TENUTO_CONFIG", str(tmp_path / "other.toml"))
    homes.append((find_home(), load_settings().home))
    monkeypatch.setenv("TENUTO_HOME", "from-the-environment")
    homes += [(find_home(), load_settings().home), (find_home("given"), load_settings(home="given").home)]
    assert all(light == full for light, full in homes), homes
    assert len({light for light, _ in homes}) == 5, "only the file without a home leaves the default"


@pytest.mark.parametrize("text", ["home = 7", "home ="])
def test_find_home_and_settings_reject_an_invalid_home(tmp_path: Path, text: str) -> None:
    (tmp_path / "tenuto.toml").write_text(text)
    for load in (find_home, load_settings):
        with pytest.raises(Invalid):
            load()


def test_empty_settings_count_as_unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A compose file sets variables without a value to an empty string."""
    settings, worker = load_settings(), load_worker_settings()
    for kind, prefix in ((Settings, "TENUTO_"), (WorkerSettings, "TENUTO_WORKER_")):
        for name in kind.model_fields:
            monkeypatch.setenv(f"{prefix}{name.upper()}", "")
    monkeypatch.setenv("TENUTO_CONFIG", "")
    assert (load_settings(database="", home=""), load_worker_settings(name="")) == (settings, worker)
    assert (load_settings(database="").database, find_home(), find_home("")) == (None, settings.home, settings.home)
    (tmp_path / "tenuto.toml").write_text('home = "mine"\ndatabase = ""\n[worker]\nname = "w"\nqueues = ""\n')
    assert (find_home(), load_settings().home, load_settings().database) == (tmp_path / "mine", tmp_path / "mine", None)
    assert (load_worker_settings().name, load_worker_settings().queues) == ("w", ("default",))
    (tmp_path / "tenuto.toml").write_text('home = ""\n')
    assert find_home() == load_settings().home == settings.home


def test_app_uses_the_settings_precedence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TENUTO_DATABASE", "postgresql://env/x")
    monkeypatch.setenv("TENUTO_HOME", str(tmp_path / "env"))
    assert Tenuto().settings.database == "postgresql://env/x"
    assert Tenuto("postgresql://argument/x").settings.database == "postgresql://argument/x"
    assert Tenuto(home="~/x").settings.home == Path("~/x").expanduser()
    assert Tenuto().settings.home == tmp_path / "env"


@pytest.mark.parametrize("text", ["a,b", " a , b ,"])
def test_worker_queues_may_be_comma_separated(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TENUTO_WORKER_QUEUES", text)
    assert load_worker_settings().queues == ("a", "b")
    assert load_worker_settings(queues=text).queues == ("a", "b")


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
def test_invalid_setting_error_names_field_and_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Invalid) as refusal:
        (load_worker_settings if name.startswith("TENUTO_WORKER_") else load_settings)()
    assert refusal.value.field == field
    assert name in str(refusal.value)


def test_connections_setting_may_be_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_CONNECTIONS", '{"hr": {"url": "postgresql://h/x", "allow_privileged_login": true}}')
    assert load_settings().connections["hr"].allow_privileged_login


def test_connections_of_all_sources_are_merged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tenuto.toml").write_text(
        '[connections.hr]\nurl = "postgresql://file/x"\nallow_privileged_login = true\n'
    )
    monkeypatch.setenv("TENUTO_CONNECTIONS", '{"crm": {"url": "postgresql://env/x"}}')
    assert sorted(load_settings().connections) == ["crm", "hr"]
    assert sorted(load_settings(connections={"shop": {"url": "sqlite:///x"}}).connections) == ["crm", "hr", "shop"]
    monkeypatch.setenv("TENUTO_CONNECTIONS", '{"hr": {"url": "postgresql://env/x"}}')
    merged = load_settings().connections["hr"]
    assert (merged.url, merged.allow_privileged_login) == ("postgresql://env/x", True)


def test_invalid_connections_json_is_an_error_without_its_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tenuto.toml").write_text('[connections.hr]\nurl = "postgresql://file/x"\n')
    monkeypatch.setenv("TENUTO_CONNECTIONS", '{"crm": {"url": "postgresql://u:hush@h/x"')
    for others in ({}, {"connections": {"shop": {"url": "sqlite:///x"}}}):
        with raises_code("settings.value.invalid", Invalid) as refusal:
            load_settings(**others)
        assert (refusal.value.field, refusal.value.__cause__) == ("connections", None)
        assert "hush" not in str(refusal.value)


@pytest.mark.parametrize(
    ("arguments", "field"), [({"slots": 0}, "slots"), ({"slot": 5}, "slot"), ({"queues": 5}, "queues")]
)
def test_invalid_settings_argument_error_names_the_field(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        load_worker_settings(**arguments)
    assert refusal.value.field is not None
    assert refusal.value.field.split(".")[0] == field


def test_invalid_value_in_settings_file_error_names_field_and_file(tmp_path: Path) -> None:
    (tmp_path / "tenuto.toml").write_text("[worker]\nslots = 'many'\n")
    with pytest.raises(Invalid) as refusal:
        load_worker_settings()
    assert refusal.value.field == "slots"
    assert "tenuto.toml" in str(refusal.value)


@pytest.mark.parametrize(
    "contents", [b"this is = not [toml", b'home = "\xff"\n', b"a = " + b"[" * 100_000, b"a = " + b"9" * 5000, None]
)
def test_unreadable_settings_file_error_names_the_file(tmp_path: Path, contents: bytes | None) -> None:
    file = tmp_path / "tenuto.toml"
    file.mkdir() if contents is None else file.write_bytes(contents)
    for read in (load_settings, load_worker_settings, find_home):
        with raises_code("settings.file.unreadable", Invalid) as refusal:
            read()
        assert "tenuto.toml" in refusal.value.message
        assert refusal.value.remedy


def test_settings_file_without_read_permission_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tenuto.toml").write_text("")
    (tmp_path / "tenuto.toml").chmod(0)
    uid = os.geteuid()
    os.seteuid(uid or 65534)  # root may read everything
    try:
        for read in (load_settings, load_worker_settings, find_home):
            with raises_code("settings.file.unreadable", Invalid):
                read()
    finally:
        os.seteuid(uid)


@pytest.mark.parametrize("text", ["worker = 5\n", "[[worker]]\nslots = 3\n"])
def test_worker_setting_must_be_a_table(tmp_path: Path, text: str) -> None:
    (tmp_path / "tenuto.toml").write_text(text)
    for read in (load_settings, load_worker_settings):
        with raises_code("settings.value.invalid", Invalid) as refusal:
            read()
        assert refusal.value.field == "worker"


def test_missing_settings_file_named_by_tenuto_config_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TENUTO_CONFIG", str(tmp_path / "nowhere.toml"))
    for read in (load_settings, load_worker_settings, find_home):
        with raises_code("settings.file.unreadable", Invalid):
            read()


def test_unknown_setting_in_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tenuto.toml").write_text("retention_day = 7\n")
    with pytest.raises(Invalid) as refusal:
        load_settings()
    assert refusal.value.field == "retention_day"


def test_read_replica_of_the_embedded_server_is_an_error() -> None:
    with raises_code("settings.value.invalid", Invalid) as refusal:
        load_settings(database_readonly="postgresql://u:hush@replica/x")
    assert refusal.value.field == "database_readonly"
    assert "the embedded server has no standby" in refusal.value.message
    assert "hush" not in str(refusal.value)


def test_settings_are_immutable() -> None:
    with pytest.raises(Exception, match="frozen"):
        load_settings().retention_days = 1


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
def test_settings_do_not_show_database_passwords(url: str) -> None:
    settings = load_settings(database=url, database_readonly=url, connections={"hr": {"url": url}}, master_key="hush")
    for shown in (repr(settings), str(settings), str(settings.redacted()), redact_password(url)):
        assert "hu" not in shown
        assert "sh" not in shown.replace("one_shots", ""), shown
    assert redact_password(url).partition("…")[2] or url.endswith("hush")


odd_passwords = st.text("/?#@:%'\"\\ \t\n&=+;[]Z", min_size=1)
"""Z occurs nowhere else, so its presence shows that a part of the password is visible."""


@given(odd_passwords)
@example("p?Z")
@example("p?Z=Z@Z&Z=/Z")
def test_redact_password_removes_exactly_the_password_of_a_url(password: str) -> None:
    around = "postgresql://user:", "@host:5432/base?sslmode=require&application_name=mine"
    assert redact_password(password.join(around)) == "…".join(around)
    around = "postgresql://host:5432/base?user=u&password=", "&sslmode=require"
    shown = redact_password(password.replace("&", "%26").join(around))
    assert shown in ("…".join(around), "postgresql://host:…&sslmode=require"), "5432 could be the start of a password"
    assert "@" in password or "base" in shown


@given(odd_passwords)
def test_redact_password_removes_exactly_the_password_of_a_keyword_string(password: str) -> None:
    escaped = re.sub(r"([\\'])", r"\\\1", password)
    bare = re.sub(r"([\\'\s])", r"\\\1", password)
    for written in (f"'{escaped}'", bare):
        around = "host=host password = ", " dbname=base user=user"
        assert redact_password(written.join(around)) == "…".join(around)
