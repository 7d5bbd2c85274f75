"""Schedules from the source of Airflow DAGs: tasks become steps, their dependencies the order of step groups."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from itertools import pairwise, zip_longest
from typing import Any

from tenuto.definitions.importers.airflow_tasks import (
    BRANCHES,
    RULES_AFTER_FAILURES,
    RULES_OF_SUCCESS,
    SHORT_CIRCUITS,
    CircularOrder,
    Conditions,
    ConditionTooLong,
    Dag,
    DagTask,
    TaskOutput,
    find_edges,
    trigger_rule,
)
from tenuto.definitions.importers.imported_definitions import ImportedDefinitions
from tenuto.definitions.importers.python_source import (
    Call,
    PythonSource,
    Reference,
    format_seconds,
    is_json,
    is_number,
    is_static,
    show_value,
    source_text,
    zone_name,
)

_DAG_PARAMETERS = ("dag_id", "description", "schedule")
_SCHEDULE_OPTIONS = ("schedule", "schedule_interval", "timetable")
_DISPLAY_OPTIONS = frozenset(
    {"tags", "doc", "doc_md", "owner", "owner_links", "default_view", "orientation", "dag", "dag_display_name",
     "task_display_name", "is_paused_upon_creation", "render_template_as_native_obj", "task_group"}
)  # fmt: skip
"""Options without effect on what runs, and when."""
_CONDITION_DECORATORS = frozenset({"task.branch", "task.short_circuit"})
_EMPTY_OPERATORS = frozenset({"EmptyOperator", "DummyOperator"})
_PYTHON_OPERATORS = frozenset({"PythonOperator", "PythonVirtualenvOperator", "ExternalPythonOperator"})
_PYTHON_DECORATORS = frozenset({"task", "task.python", "task.virtualenv", "task.external_python"})
_CRON_TIMETABLES = frozenset({"CronTriggerTimetable", "CronDataIntervalTimetable"})
_DELTA_TIMETABLES = frozenset({"DeltaTriggerTimetable", "DeltaDataIntervalTimetable"})
_DEFAULT_RETRY_DELAY = timedelta(minutes=5)
_SHELL = "/bin/bash"
_MAX_SHOWN_CHARACTERS = 80


def import_airflow_dags(text: str, *, source: str, zone: str | None = None) -> ImportedDefinitions:
    """Convert the DAGs that the source declares. The source is read, not run."""
    python = PythonSource(text, source)
    result = ImportedDefinitions(source)
    reader = _DagReader(python, result)
    reader.read()
    for dag in reader.dags:
        _add_schedule(result, dag, zone)
    if not reader.dags:
        result.omit(None, "the file declares no DAG")
    if result.schedules:
        result.omit(None, "Airflow lets 16 runs of a DAG overlap, a schedule none; see `overlap`")
    return result


class _DagReader:
    """Reads the statements of a module: DAGs, their tasks, and the order of these."""

    def __init__(self, python: PythonSource, result: ImportedDefinitions) -> None:
        self._python = python
        self._result = result
        self.dags: list[Dag] = []
        self._named_dags: dict[str, Dag] = {}
        self._functions: dict[str, dict[str, Any]] = {}
        """Functions with the decorator ``@task``, and the options of the decorator."""
        self._parameters: dict[str, list[str]] = {}
        """The names of their parameters."""
        self._named_tasks: dict[str, list[DagTask]] = {}
        self._named_lists: dict[str, list[ast.expr]] = {}
        """Lists of expressions, for `chain(*tasks)`."""
        self._prefix = ""
        """Prefix of the ids of tasks: the names of the task groups around them."""

    def read(self) -> None:
        self._read_body(self._python.tree.body, None)

    # --- statements -------------------------------------------------------------------------------------------------

    def _read_body(self, body: Iterable[ast.stmt], dag: Dag | None) -> None:
        for statement in body:
            try:
                self._read_statement(statement, dag)
            except RecursionError:
                self._result.omit(statement.lineno, "the statement is left out: it is nested too deeply")

    def _read_statement(self, statement: ast.stmt, dag: Dag | None) -> None:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._read_function(statement)
            case ast.With():
                self._read_with(statement, dag)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._read_assignment(name, value, dag)
            case ast.Expr(value=value) | ast.Return(value=ast.expr() as value):
                self._read_expression(value, dag)
            case ast.If() | ast.For() | ast.While() | ast.Try() | ast.Assign() | ast.AnnAssign():
                self._omit_tasks(statement, dag)
            case _:
                pass

    def _omit_tasks(self, statement: ast.stmt, dag: Dag | None) -> None:
        """Report tasks and their order in statements whose result is not known, such as loops."""
        where = "" if dag is None else f"{dag.name!r}: "
        nodes = list(ast.walk(statement))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        if found := next((node for node in calls if self._is_operator(node) or self._function_name(node)), None):
            text = f"tasks such as {source_text(found.func)}(…) are left out: the file does not show which exist"
            self._result.omit(statement.lineno, f"{where}{text}")
        elif any(map(_is_order, nodes)) and any(isinstance(node, ast.Name) and self._stands(node) for node in nodes):
            self._result.omit(statement.lineno, f"{where}the order of tasks in this statement is left out")

    def _stands(self, node: ast.Name) -> bool:
        """Return whether a name stands for tasks."""
        return node.id in self._named_tasks

    def _read_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in function.decorator_list:
            call = self._python.evaluate(decorator)
            name = call.name if isinstance(call, Call) else source_text(decorator)
            name = re.sub(r"^(airflow\.)?((decorators|sdk)\.)?", "", name)
            options = dict(call.options) if isinstance(call, Call) else {}
            if name == "dag":
                given = dict(zip(_DAG_PARAMETERS, call.arguments, strict=False)) if isinstance(call, Call) else {}
                dag = self._add_dag({"dag_id": function.name, **given, **options}, function.lineno)
                self._read_body(function.body, dag)
            elif name == "task_group":
                text = f"the tasks of {function.name!r} are left out: @task_group has no equivalent; see TaskGroup"
                self._result.omit(function.lineno, text)
            elif name == "task" or name.startswith("task."):
                self._functions[function.name] = options | ({} if name in _PYTHON_DECORATORS else {"decorator": name})
                parameters = (*function.args.posonlyargs, *function.args.args)
                self._parameters[function.name] = [each.arg for each in parameters]

    def _read_with(self, statement: ast.With, dag: Dag | None) -> None:
        for item in statement.items:
            call = self._python.evaluate(item.context_expr)
            if isinstance(call, Call) and call.last_name == "DAG":
                dag = self._add_called_dag(call, statement.lineno)
                if isinstance(item.optional_vars, ast.Name):
                    self._named_dags[item.optional_vars.id] = dag
            elif isinstance(call, Reference) and call.text in self._named_dags:
                dag = self._named_dags[call.text]
            elif dag is not None:
                self._read_group(statement, item, dag)
                return
        self._read_body(statement.body, dag)

    def _read_group(self, statement: ast.With, item: ast.withitem, dag: Dag) -> None:
        """Read the tasks of a ``TaskGroup``; its name stands for all of them."""
        known = set(dag.tasks)
        prefix = self._prefix
        self._prefix += self._prefix_of_group(item.context_expr, dag)
        self._read_body(statement.body, dag)
        self._prefix = prefix
        if isinstance(item.optional_vars, ast.Name):
            inner = [task for id, task in dag.tasks.items() if id not in known]
            self._named_tasks[item.optional_vars.id] = inner

    def _prefix_of_group(self, node: ast.expr, dag: Dag) -> str:
        """Return the prefix of the ids of the tasks of a group, which branches use, too."""
        call = self._python.evaluate(node)
        if not isinstance(call, Call) or call.last_name != "TaskGroup":
            return ""
        given = dict(zip(("group_id", "prefix_group_id"), call.arguments, strict=False)) | dict(call.options)
        if given.get("prefix_group_id", True) is False:
            return ""
        if not isinstance(id := given.get("group_id"), str):
            text = f"the name {show_value(id)} of the task group is computed, and not in the names of its steps"
            self._result.omit(node.lineno, f"{dag.name!r}: {text}")
            return ""
        return f"{id}."

    def _read_assignment(self, name: str, value: ast.expr, dag: Dag | None) -> None:
        call = self._python.evaluate(value)
        if isinstance(call, Call) and call.last_name == "DAG":
            self._named_dags[name] = self._add_called_dag(call, value.lineno)
            return
        self._named_tasks.pop(name, None)
        self._named_lists.pop(name, None)
        if tasks := self._read_expression(value, dag):
            self._named_tasks[name] = tasks
            if isinstance(value, ast.List | ast.Tuple) and all(isinstance(item, ast.Name) for item in value.elts):
                self._named_lists[name] = value.elts

    # --- expressions ------------------------------------------------------------------------------------------------

    def _read_expression(self, node: ast.expr, dag: Dag | None) -> list[DagTask]:
        """Read tasks and their order from an expression; return the tasks that it stands for."""
        match node:
            case ast.Name(id=name):
                return self._named_tasks.get(name, [])
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [task for item in items for task in self._read_expression(item, dag)]
            case ast.Starred(value=value):
                return self._read_expression(value, dag)
            case ast.Dict(values=items):
                return [task for item in items for task in self._read_expression(item, dag)]
            case ast.Subscript(value=value) | ast.Attribute(value=value):  # a part of a result, or `task.output`
                return self._read_expression(value, dag)
            case ast.BinOp(left=left, op=ast.RShift() | ast.LShift() as operator, right=right):
                first, second = self._read_expression(left, dag), self._read_expression(right, dag)
                if _is_label(right):  # `a >> Label("ok") >> b`: a description of the edge
                    return first
                if not _is_label(left):
                    self._require_tasks(node, (first, second), dag)
                _order(first, second) if isinstance(operator, ast.RShift) else _order(second, first)
                return second
            case ast.IfExp():
                self._omit_tasks(ast.copy_location(ast.Expr(node), node), dag)
                return []
            case ast.Call():
                return self._read_call(node, dag)
            case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
                self._omit_tasks(ast.copy_location(ast.Expr(node), node), dag)
                return []
            case _:
                return []

    def _read_call(self, node: ast.Call, dag: Dag | None) -> list[DagTask]:
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("set_downstream", "set_upstream"):
            own = self._read_expression(node.func.value, dag)
            others = [task for argument in node.args for task in self._read_expression(argument, dag)]
            self._require_tasks(node, (own, others), dag)
            _order(own, others) if node.func.attr == "set_downstream" else _order(others, own)
            return own
        if source_text(node.func).rpartition(".")[2] == "chain":
            return self._read_chain(node, dag)
        if self._is_operator(node):
            return self._read_operator(node, dag)
        if function := self._function_name(node):
            return self._read_function_call(node, function, dag)
        if (name := source_text(node.func)) in self._named_dags or dag is None:
            return []
        before = [task for argument in node.args for task in self._read_expression(argument, dag)]
        if before:
            names = ", ".join(repr(task.id) for task in before)
            self._result.omit(node.lineno, f"{dag.name!r}: `{name}(…)`, which stands after {names}, is left out")
        return []

    def _read_chain(self, node: ast.Call, dag: Dag | None) -> list[DagTask]:
        """Read ``chain(a, [b, c], [d, e], f)``: lists of equal length are ordered pair by pair, as in Airflow."""
        arguments: list[ast.expr] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Name):
                arguments += self._named_lists.get(argument.value.id, [argument])
            else:
                arguments.append(argument)
        groups = [self._read_expression(argument, dag) for argument in arguments if not _is_label(argument)]
        self._require_tasks(node, groups, dag)
        for before, after in pairwise(groups):
            if len(before) == len(after) > 1:
                for first, second in zip(before, after, strict=True):
                    _order([first], [second])
            else:
                _order(before, after)
        return groups[-1] if groups else []

    def _require_tasks(self, node: ast.expr, groups: Sequence[Sequence[DagTask]], dag: Dag | None) -> None:
        """Report an order in which a part stands for no task that the file shows."""
        if (dag is not None or any(groups)) and not all(groups):
            where = "" if dag is None else f"{dag.name!r}: "
            text = f"the order `{_shorten(source_text(node))}` is left out in part: not all tasks are known"
            self._result.omit(node.lineno, f"{where}{text}")

    def _is_operator(self, node: ast.Call) -> bool:
        return re.search(r"(Operator|Sensor)(Async)?$", source_text(node.func)) is not None

    def _function_name(self, node: ast.Call) -> str | None:
        """Return the decorated function of ``f(…)``, ``f.override(…)(…)`` or ``f.expand(…)``."""
        match node.func:
            case ast.Name(id=name):
                pass
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="override" | "partial")):
                pass
            case ast.Attribute(value=ast.Name(id=name), attr="expand" | "expand_kwargs"):
                pass
            case ast.Attribute(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="partial"))):
                pass
            case _:
                return None
        return name if name in self._functions else None

    # --- tasks ------------------------------------------------------------------------------------------------------

    def _read_function_call(self, node: ast.Call, function: str, dag: Dag | None) -> list[DagTask]:
        if dag is None:
            return []
        options = dict(self._functions[function])
        if isinstance(node.func, ast.Call):
            override = self._python.evaluate(node.func)
            if isinstance(override, Call):
                options |= override.options
            else:
                self._result.omit(node.lineno, f"{function!r}: the options in `{source_text(node.func)}` are computed")
        decorator = options.pop("decorator", None)
        is_mapped = isinstance(node.func, ast.Attribute)
        id = options.pop("task_id", function)
        id = self._prefix + (id if isinstance(id, str) else show_value(id))
        task = self._add_task(id, node.lineno, {"job": function}, options, dag)
        given: dict[str, Any] = {}
        names = self._parameters[function][: len(node.args)]
        for name, argument in [
            *zip_longest(names, node.args),
            *((each.arg, each.value) for each in node.keywords),
        ]:
            before, value = self._read_argument(argument, dag)
            _order(before, [task])
            if name is not None and not is_mapped and _is_passable(value):
                given[name] = value
            elif before:
                ids = ", ".join(repr(each.id) for each in before)
                self._result.omit(node.lineno, f"{task.id!r}: its argument, computed from the result of {ids}")
            elif not is_mapped:
                reason = "; write it by name, as input" if is_static(value) else " is computed"
                self._result.omit(node.lineno, f"{task.id!r}: the argument {show_value(value)}{reason}")
        if (decorator is not None and decorator not in _CONDITION_DECORATORS) or is_mapped:
            what = f"@{decorator}" if decorator else f"`{source_text(node.func)}(…)`, which makes many tasks of one,"
            self._result.omit(node.lineno, f"{task.id!r} is left out: {what} has no equivalent; write a job")
            task.step = None
        elif task.step is not None:
            task.kind = decorator or ""
            if given:
                task.step["input"] = given
        return [task]

    def _read_argument(self, node: ast.expr, dag: Dag | None) -> tuple[list[DagTask], Any]:
        """Return the tasks that an argument names, and its value, in which their results are `TaskOutput`."""
        match node:
            case ast.List(elts=items) | ast.Tuple(elts=items):
                found = [self._read_argument(item, dag) for item in items]
                return [task for tasks, _ in found for task in tasks], [value for _, value in found]
            case ast.Dict(keys=keys, values=items) if all(isinstance(key, ast.Constant) for key in keys):
                found = [self._read_argument(item, dag) for item in items]
                values = {key.value: value for key, (_, value) in zip(keys, found, strict=True)}  # type: ignore[union-attr]
                return [task for tasks, _ in found for task in tasks], values
            case ast.Subscript(value=inner, slice=ast.Constant(value=str() | int() as part)):
                tasks, value = self._read_argument(inner, dag)
                if isinstance(value, TaskOutput):
                    return tasks, TaskOutput(value.task, (*value.parts, part))
                return tasks, self._python.evaluate(node)
            case ast.Attribute(value=inner, attr="output"):
                return self._read_argument(inner, dag)
            case ast.Name() | ast.Call():
                tasks = self._read_expression(node, dag)
                if len(tasks) == 1 and self._is_result(node):
                    return tasks, TaskOutput(tasks[0])
                return tasks, self._python.evaluate(node)
            case _:
                return self._read_expression(node, dag), self._python.evaluate(node)

    def _is_result(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) or (isinstance(node, ast.Call) and self._function_name(node) is not None)

    def _read_operator(self, node: ast.Call, dag: Dag | None) -> list[DagTask]:
        call = self._python.evaluate(node)
        options = dict(call.options) if isinstance(call, Call) else {}
        own_dag = options.get("dag")
        if isinstance(own_dag, Reference) and own_dag.text in self._named_dags:
            dag = self._named_dags[own_dag.text]
        if dag is None:
            return []
        operator = source_text(node.func).rpartition(".")[2]
        id = options.pop("task_id", None)
        if not isinstance(id, str):
            self._result.omit(node.lineno, f"{dag.name!r}: the name of the {operator} is computed")
            id = f"{operator} in line {node.lineno}"
        id = self._prefix + id
        if operator in _EMPTY_OPERATORS:
            rule = {"trigger_rule": options["trigger_rule"]} if "trigger_rule" in options else {}
            return [self._add_task(id, node.lineno, None, rule, dag)]
        step = self._read_step(node.lineno, operator, id, options)
        task = self._add_task(id, node.lineno, step, options if step else {}, dag)
        task.kind = operator
        if step is not None and (keywords := _keyword(node, "op_kwargs")) is not None:
            before, given = self._read_argument(keywords, dag)
            _order(before, [task])
            if isinstance(given, dict) and _is_passable(given) and given:
                step["input"] = given
        return [task]

    def _read_step(self, line: int, operator: str, id: str, options: dict[str, Any]) -> dict[str, Any] | None:
        """Return the step of an operator and take its own options; none if it has no equivalent."""
        if operator == "BashOperator":
            return self._read_command(line, id, options)
        if operator in _PYTHON_OPERATORS or operator in BRANCHES or operator in SHORT_CIRCUITS:
            return self._read_callable(line, id, options)
        if operator == "TriggerDagRunOperator":
            return self._read_trigger(line, id, options)
        self._result.omit(line, f"{id!r} is left out: {operator} has no equivalent; write a job")
        return None

    def _read_command(self, line: int, id: str, options: dict[str, Any]) -> dict[str, Any] | None:
        command = options.pop("bash_command", None)
        if not isinstance(command, str):
            self._result.omit(line, f"{id!r} is left out: its command {show_value(command)} is computed")
            return None
        if "{{" in command or "{%" in command:
            self._result.omit(line, f"{id!r} is left out: its command contains a template; write a job")
            return None
        arguments: dict[str, Any] = {"program": _SHELL, "args": ["-c", command]}
        options.pop("append_env", None)
        if (variables := options.pop("env", None)) is not None:
            if isinstance(variables, dict) and all(isinstance(value, str) for value in variables.values()):
                arguments["env"] = variables
            else:
                self._result.omit(line, f"{id!r}: the variables {show_value(variables)} are computed")
        if (folder := options.pop("cwd", None)) is not None:
            if isinstance(folder, str):
                arguments["folder"] = folder
            else:
                self._result.omit(line, f"{id!r}: cwd={show_value(folder)} is computed")
        return {"kind": "executable", "arguments": arguments}

    def _read_callable(self, line: int, id: str, options: dict[str, Any]) -> dict[str, Any] | None:
        function = options.pop("python_callable", None)
        if not isinstance(function, Reference) or not re.fullmatch(r"[\w.]+", function.text):
            self._result.omit(line, f"{id!r} is left out: its function {show_value(function)} has no name")
            return None
        step: dict[str, Any] = {"job": function.last_name}
        options.pop("provide_context", None)
        given = options.pop("op_kwargs", None)
        if given and not (isinstance(given, dict) and (is_json(given) or self._names_tasks(given))):
            reason = "are not JSON values" if is_static(given) else "are computed"
            self._result.omit(line, f"{id!r}: the keyword arguments {show_value(given)} {reason}")
        if given := options.pop("op_args", None):
            self._result.omit(
                line, f"{id!r}: the positional arguments {show_value(given)}; write them by name, as input"
            )
        return step

    def _names_tasks(self, given: Mapping[Any, Any]) -> bool:
        """Return whether all values that are no JSON are results of tasks, such as ``extract.output``."""
        return all(
            is_json(value) or (isinstance(value, Reference) and value.text.removesuffix(".output") in self._named_tasks)
            for value in given.values()
        )

    def _read_trigger(self, line: int, id: str, options: dict[str, Any]) -> dict[str, Any] | None:
        name = options.pop("trigger_dag_id", None)
        if not isinstance(name, str):
            self._result.omit(line, f"{id!r} is left out: the DAG {show_value(name)} is computed")
            return None
        if options.pop("wait_for_completion", False) is not True:
            self._result.omit(line, f"{id!r}: the step waits until the other schedule has ended; Airflow does not wait")
        return {"schedule": name}

    def _add_task(self, id: str, line: int, step: dict[str, Any] | None, options: dict[str, Any], dag: Dag) -> DagTask:
        unique = id
        number = 1
        while unique in dag.tasks:  # Airflow numbers several calls of a function in the same way
            unique, number = f"{id}__{number}", number + 1
        task = dag.tasks[unique] = DagTask(unique, line, step, options)
        return task

    def _add_called_dag(self, call: Call, line: int) -> Dag:
        return self._add_dag(dict(zip(_DAG_PARAMETERS, call.arguments, strict=False)) | dict(call.options), line)

    def _add_dag(self, options: dict[str, Any], line: int) -> Dag:
        name = options.pop("dag_id", None)
        if not isinstance(name, str):
            self._result.omit(line, f"the name {show_value(name)} of the DAG is computed")
            name = f"DAG in line {line}"
        dag = Dag(name, line, options)
        self.dags.append(dag)
        return dag


def _is_order(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(op=ast.RShift() | ast.LShift()):
            return True
        case ast.Call(func=ast.Attribute(attr="set_downstream" | "set_upstream")):
            return True
        case ast.Call(func=ast.Name(id="chain") | ast.Attribute(attr="chain")):
            return True
        case _:
            return False


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in node.keywords if each.arg == name), None)


def _is_passable(value: Any) -> bool:
    """Return whether a definition file can contain a value, with references to results."""
    match value:
        case TaskOutput():
            return True
        case list() | tuple():
            return all(map(_is_passable, value))
        case dict():
            return all(isinstance(key, str) and _is_passable(each) for key, each in value.items())
        case _:
            return is_json(value)


def _is_label(node: ast.expr) -> bool:
    """Return whether an expression describes an edge, which has no effect on the order."""
    return isinstance(node, ast.Call) and source_text(node.func).rpartition(".")[2] in ("Label", "EdgeModifier")


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"


def _order(before: Sequence[DagTask], after: Sequence[DagTask]) -> None:
    for task in after:
        task.upstream.update(before)


# --- from DAG to schedule -------------------------------------------------------------------------------------------


def _add_schedule(result: ImportedDefinitions, dag: Dag, zone: str | None) -> None:
    options = dict(dag.options)
    defaults = options.pop("default_args", None) or {}
    if not isinstance(defaults, dict):
        result.omit(dag.line, f"{dag.name!r}: default_args={show_value(defaults)} is computed")
        defaults = {}
    groups = _convert_groups(result, dag, defaults)
    if not groups:
        result.omit(dag.line, f"{dag.name!r} is left out: no step could be carried over")
        return
    fields: dict[str, Any] = {}
    description = options.pop("description", None)
    if isinstance(description, str):
        fields["description"] = description
    found_zone = _convert_limits(result, dag, {**defaults, **options}, fields)
    trigger = _convert_trigger(result, dag, options)
    if trigger:
        zone = zone or trigger.pop("zone", None) or found_zone or "UTC"
        fields = {**fields, **trigger, "zone": zone}
        _convert_policies(result, dag, options, fields)
    else:
        fields.pop("start", None)
        fields.pop("end", None)
    known = {*_SCHEDULE_OPTIONS, *_DISPLAY_OPTIONS, "start_date", "end_date", "catchup", "max_active_runs"}
    for name in sorted(options.keys() - known - {"description"}):
        result.omit(dag.line, f"{dag.name!r}: {name}={show_value(options[name])}")
    result.add(dag.line, dag.name, {**fields, "steps": [group[0] if len(group) == 1 else group for group in groups]})


def _convert_trigger(result: ImportedDefinitions, dag: Dag, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the trigger; none of them if the schedule runs manually."""
    name = next((each for each in _SCHEDULE_OPTIONS if each in options), None)
    if name is None:
        result.omit(
            dag.line, f"{dag.name!r}: without a schedule, Airflow 2 runs it daily, Airflow 3 and this file never"
        )
        return {}
    reason: str | None = None
    match options[name]:
        case None:
            return {}
        case "@once":
            reason = "it runs once; see `tenuto once`"
        case "@continuous":
            reason = "there is no trigger for the end of the previous run"
        case str(text):
            return {"cron": text}
        case timedelta() as interval:
            return {"every": format_seconds(interval.total_seconds())}
        case Call(arguments=(timedelta() as interval,)) as call if call.last_name in _DELTA_TIMETABLES:
            return {"every": format_seconds(interval.total_seconds())}
        case Call() as call if call.last_name in _CRON_TIMETABLES:
            given = dict(zip(("cron", "timezone"), call.arguments, strict=False)) | dict(call.options)
            cron, own_zone = given.pop("cron", None), given.pop("timezone", None)
            if isinstance(cron, str) and (own_zone is None or zone_name(own_zone)):
                for option, value in given.items():
                    result.omit(dag.line, f"{dag.name!r}: {option}={show_value(value)} of its timetable")
                return {"cron": cron} | ({"zone": zone_name(own_zone)} if own_zone is not None else {})
            reason = f"{show_value(call)} is computed"
        case value:
            reason = f"{show_value(value)} is neither a cron line nor an interval in the file"
    result.omit(dag.line, f"{dag.name!r} has no trigger: {reason}")
    return {}


def _convert_limits(
    result: ImportedDefinitions, dag: Dag, options: Mapping[str, Any], fields: dict[str, Any]
) -> str | None:
    """Add the first and the last day; return the time zone of the first."""
    found_zone: str | None = None
    for option, limit in (("start_date", "start"), ("end_date", "end")):
        if (value := options.get(option)) is None:
            continue
        day, zone = _parse_day(value)
        if day is None:
            result.omit(dag.line, f"{dag.name!r}: {option}={show_value(value)} is computed")
        else:
            fields[limit] = day.isoformat()
        found_zone = found_zone or zone
    return found_zone


def _parse_day(value: Any) -> tuple[date | None, str | None]:
    """Return day and time zone of ``datetime(2026, 1, 31, tzinfo=…)`` or ``pendulum.datetime(2026, 1, 31, tz=…)``."""
    if not isinstance(value, Call) or value.last_name not in ("datetime", "date"):
        return None, None
    numbers = [
        *value.arguments[:3],
        *(value.options[name] for name in ("year", "month", "day") if name in value.options),
    ]
    zone = zone_name(value.options.get("tzinfo", value.options.get("tz")))
    try:
        return date(*numbers), zone
    except (TypeError, ValueError):
        return None, zone


def _convert_policies(
    result: ImportedDefinitions, dag: Dag, options: Mapping[str, Any], fields: dict[str, Any]
) -> None:
    catchup = options.get("catchup")
    if catchup is True:
        fields["misfire"] = "all"
        text = (
            "catchup=True covers the time since the schedule was created; see `tenuto schedule backfill` for the past"
        )
        result.omit(dag.line, f"{dag.name!r}: {text}")
    elif catchup not in (None, False):
        result.omit(dag.line, f"{dag.name!r}: catchup={show_value(catchup)} is computed")
    runs = options.get("max_active_runs")
    if runs == 1:
        fields["overlap"] = "queue_one"
    elif runs is not None:
        result.omit(dag.line, f"{dag.name!r}: max_active_runs={show_value(runs)}; see `overlap`")


# --- from tasks to step groups --------------------------------------------------------------------------------------


def _convert_groups(result: ImportedDefinitions, dag: Dag, defaults: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the step groups: a step is in the first group that starts after all tasks before it."""
    predecessors = _find_predecessors(dag)
    steps = [task for task in dag.tasks.values() if task.step is not None]
    circle = next((task for task in steps if task in predecessors[task]), None)
    if circle is not None:
        result.omit(circle.line, f"{dag.name!r}: {circle.id!r} stands before itself")
        return []
    levels: dict[DagTask, int] = {}

    def level_of(task: DagTask) -> int:
        if task not in levels:
            levels[task] = 1 + max((level_of(each) for each in predecessors[task]), default=-1)
        return levels[task]

    for task in sorted(steps, key=lambda task: len(predecessors[task])):
        level_of(task)
    groups: list[list[dict[str, Any]]] = [[] for _ in range(max(levels.values(), default=-1) + 1)]
    if (conditions := _find_conditions(result, dag, defaults)) is None:
        return []
    for task in steps:
        step = _convert_step(result, task, defaults)
        if any(levels[each] < levels[task] and each not in predecessors[task] for each in steps):
            step["needs"] = sorted(each.id for each in find_edges(task))
        if condition := conditions.found.get(task):
            step["when"] = condition
        if task in conditions.may_fail:
            step["continue_on_failure"] = True
        groups[levels[task]].append(step)
    return groups


def _find_conditions(result: ImportedDefinitions, dag: Dag, defaults: Mapping[str, Any]) -> Conditions | None:
    """Return the conditions of steps; report what has none that a step can have."""
    for task in dag.tasks.values():
        if task.step is None and "trigger_rule" in task.options:
            _report_rule(result, task, task.options)
    try:
        return Conditions(dag, defaults)
    except CircularOrder:
        result.omit(dag.line, f"{dag.name!r}: tasks without a step stand before themselves")
    except ConditionTooLong as error:
        result.omit(error.task.line, f"{dag.name!r}: the condition of {error.task.id!r} is too long")
    return None


def _find_predecessors(dag: Dag) -> dict[DagTask, set[DagTask]]:
    """Return for each task the steps that stand before it, directly or through others."""
    found: dict[DagTask, set[DagTask]] = {}
    for task in dag.tasks.values():
        seen: set[DagTask] = set()
        waiting = [*task.upstream]
        while waiting:
            other = waiting.pop()
            if other not in seen:
                seen.add(other)
                waiting += other.upstream
        found[task] = {other for other in seen if other.step is not None}
    return found


def _convert_step(result: ImportedDefinitions, task: DagTask, defaults: Mapping[str, Any]) -> dict[str, Any]:
    assert task.step is not None
    options = {**defaults, **task.options}
    step = {"name": task.id, **task.step} if task.step.get("job") != task.id else dict(task.step)
    if given := {
        name: value for name, each in step.get("input", {}).items()
        if (value := _to_file_value(result, task, each)) is not _NO_VALUE
    }:  # fmt: skip
        step["input"] = given
    else:
        step.pop("input", None)
    for day in ("start_date", "end_date"):
        options.pop(day, None)
    retries, delay = options.pop("retries", 0), options.pop("retry_delay", None)
    longest, grows = options.pop("max_retry_delay", None), options.pop("retry_exponential_backoff", False)
    if not (is_number(retries) and int(retries) == retries >= 0):
        result.omit(task.line, f"{task.id!r}: retries={show_value(retries)} is not a number in the file")
    elif retries == 0:
        step["max_attempts"] = 1
    else:
        seconds = _seconds_of(result, task, "retry_delay", delay, _DEFAULT_RETRY_DELAY.total_seconds())
        step["retry"] = {"max_attempts": int(retries) + 1, "base_seconds": seconds, "factor": 2 if grows is True else 1}
        if (cap := _seconds_of(result, task, "max_retry_delay", longest, max(seconds, 3600.0))) != 3600:
            step["retry"]["cap_seconds"] = cap
    timeout = options.pop("execution_timeout", None)
    if (limit := _seconds_of(result, task, "execution_timeout", timeout, 0.0)) > 0:
        step["timeout"] = format_seconds(limit)
    if isinstance(options.get("queue"), str):
        step["queue"] = options.pop("queue")
    _report_rule(result, task, options)
    options.pop("trigger_rule", None)
    if task.kind in SHORT_CIRCUITS and isinstance(options.get("ignore_downstream_trigger_rules"), bool):
        options.pop("ignore_downstream_trigger_rules")
    for name in sorted(options.keys() - _DISPLAY_OPTIONS):
        if options[name] not in (None, False):
            result.omit(task.line, f"{task.id!r}: {name}={show_value(options[name])}")
    return step


def _report_rule(result: ImportedDefinitions, task: DagTask, options: Mapping[str, Any]) -> None:
    """Report a trigger rule that has no equivalent, or another meaning."""
    rule = trigger_rule(options)
    if rule not in RULES_OF_SUCCESS | RULES_AFTER_FAILURES:
        result.omit(task.line, f"{task.id!r}: trigger_rule={show_value(options.get('trigger_rule'))}; see `when`")
    elif rule in ("one_failed", "one_success") and len(find_edges(task)) > 1:
        result.omit(task.line, f"{task.id!r}: {rule} starts when all tasks before it have ended, not at the first")


_NO_VALUE = object()


def _to_file_value(result: ImportedDefinitions, task: DagTask, value: Any) -> Any:
    """Return a value of a definition file; results of tasks become references."""
    if isinstance(value, list | tuple):
        found = [_to_file_value(result, task, each) for each in value]
        return _NO_VALUE if any(each is _NO_VALUE for each in found) else found
    if isinstance(value, dict):
        named = {name: _to_file_value(result, task, each) for name, each in value.items()}
        return _NO_VALUE if any(each is _NO_VALUE for each in named.values()) else named
    if not isinstance(value, TaskOutput):
        return value.replace("${steps", "$${steps") if isinstance(value, str) else value
    if value.task.step is None:
        result.omit(task.line, f"{task.id!r}: its argument, the result of {value.task.id!r}, which is left out")
        return _NO_VALUE
    if value.task.step.get("kind") == "executable":
        text = "in Airflow it is the last line"
        result.omit(task.line, f"{task.id!r}: the result of {value.task.id!r} is all that the command writes; {text}")
        return TaskOutput(value.task, ("stdout", *value.parts)).to_reference()
    return value.to_reference()


def _seconds_of(result: ImportedDefinitions, task: DagTask, name: str, value: Any, default: float) -> float:
    if value is None:
        return default
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_number(seconds) or seconds < 0:
        result.omit(task.line, f"{task.id!r}: {name}={show_value(value)} is computed")
        return default
    return float(seconds)
