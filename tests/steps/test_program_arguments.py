"""Variables of programs: none that steers which code is run is ever one that a definition may give."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from tenuto.errors import Invalid
from tenuto.steps.programs.arguments import Environment

STEERING = """
LD_PRELOAD LD_AUDIT DYLD_INSERT_LIBRARIES PYTHONPATH PYTHONSTARTUP PERL5OPT PERL5LIB RUBYOPT NODE_OPTIONS BASH_ENV
DOTNET_STARTUP_HOOKS COMPLUS_ProfAPI CORECLR_PROFILER GIT_SSH_COMMAND TENUTO_DATABASE PATH PATHEXT ENV IFS SHELL
SHELLOPTS BASHOPTS PS4 PROMPT_COMMAND CDPATH GLOBIGNORE PSModulePath GCONV_PATH LOCPATH NLSPATH HOSTALIASES
RESOLV_HOST_CONF RES_OPTIONS CLASSPATH JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS GLIBC_TUNABLES MALLOC_CHECK_
OPENSSL_CONF OPENSSL_MODULES SSLKEYLOGFILE ComSpec R_HOME LUA_INIT TCLLIBPATH
"""
environment: TypeAdapter[Any] = TypeAdapter(Environment)


@pytest.mark.parametrize("name", STEERING.split())
def test_a_variable_that_steers_which_code_is_run_is_refused_however_it_is_written(name: str) -> None:
    for written in (name, name.lower(), name.upper()):
        with pytest.raises(Invalid, match="decides which code is run") as refusal:
            environment.validate_python({written: "x"})
        assert refusal.value.field == f"env.{written}"


def test_a_variable_that_only_sounds_like_one_may_be_given() -> None:
    harmless = ["MY_PATH", "PATHS", "SHELLS", "LDAP_URL", "HOME", "LANG", "TZ", "ENVIRONMENT", "GITHUB_TOKEN", "NODES"]
    assert list(environment.validate_python(dict.fromkeys(harmless, "x"))) == harmless
