"""Environment variables of programs: those that decide which code runs are rejected."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from tenuto.errors import Invalid
from tenuto.steps.programs.program import Environment
from tests.support.errors import raises_code

CODE_VARIABLES = """
LD_PRELOAD LD_AUDIT DYLD_INSERT_LIBRARIES PYTHONPATH PYTHONSTARTUP PERL5OPT PERL5LIB RUBYOPT NODE_OPTIONS BASH_ENV
DOTNET_STARTUP_HOOKS COMPLUS_ProfAPI CORECLR_PROFILER GIT_SSH_COMMAND TENUTO_DATABASE PATH PATHEXT ENV IFS SHELL
SHELLOPTS BASHOPTS PS4 PROMPT_COMMAND CDPATH GLOBIGNORE PSModulePath GCONV_PATH LOCPATH NLSPATH HOSTALIASES
RESOLV_HOST_CONF RES_OPTIONS CLASSPATH JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS GLIBC_TUNABLES MALLOC_CHECK_
OPENSSL_CONF OPENSSL_MODULES SSLKEYLOGFILE ComSpec R_HOME LUA_INIT TCLLIBPATH
"""
environment: TypeAdapter[Any] = TypeAdapter(Environment)


@pytest.mark.parametrize("name", CODE_VARIABLES.split())
def test_variable_that_decides_which_code_runs_is_rejected_in_any_case(name: str) -> None:
    for spelling in (name, name.lower(), name.upper()):
        with raises_code("step.program.env.reserved", Invalid) as caught:
            environment.validate_python({spelling: "x"})
        assert caught.value.field == f"env.{spelling}"


def test_variable_with_a_similar_name_is_accepted() -> None:
    harmless = ["MY_PATH", "PATHS", "SHELLS", "LDAP_URL", "HOME", "LANG", "TZ", "ENVIRONMENT", "GITHUB_TOKEN", "NODES"]
    assert list(environment.validate_python(dict.fromkeys(harmless, "x"))) == harmless
