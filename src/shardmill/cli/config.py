"""--config job.toml → the defaults of the options, and --save-config: what a command line said → such a file."""

import difflib
import json
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from shardmill.cli.options import files, limits_of
from shardmill.errors import OutputError, UsageError
from shardmill.spec import Limits, Spec, option_of
from shardmill.system.names import show

_FIRST_LINE = "# shardmill prepare --config THIS-FILE: the job; options on the command line win over it.\n"
_LARGEST = 1 << 20
_JOB = {field.name for kind in (Spec, Limits) for field in fields(kind)}
"""What a file may say: the choices of a job. How to report on it belongs on the command line."""


def config_options(command: Callable[..., None]) -> Callable[..., None]:
    """The arguments of a job, and the options that read and write them as a file."""
    command = click.option(
        "--save-config",
        metavar="FILE",
        shell_complete=files,
        help="Write what this command line (and --config) says about the job to a TOML file for --config.",
    )(command)
    command = click.option(
        "--config",
        metavar="FILE",
        shell_complete=files,
        is_eager=True,
        expose_value=False,
        callback=_read,
        help='Take inputs, output and options from a TOML file with the same names, e.g. shard-tokens = "100M". The command line wins over it.',
    )(command)
    return click.argument("inputs", nargs=-1, callback=_inputs, metavar="INPUT...", shell_complete=files)(command)


def job_of(given: dict[str, Any]) -> tuple[Spec, Limits]:
    """The job that a command line describes, which is saved if --save-config asks for it."""
    file = given.pop("save_config")
    limits = limits_of(given)
    spec = Spec(**given)
    if file is not None:
        _save(Path(file), click.get_current_context())
    return spec, limits


def _inputs(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Click takes no default for an argument that may be repeated."""
    found = value or tuple((ctx.default_map or {}).get("inputs", ()))
    if not found and not ctx.resilient_parsing:
        raise click.MissingParameter(ctx=ctx, param=param)
    return found


def _read(ctx: click.Context, _param: click.Parameter, file: str | None) -> None:
    """Sets the defaults of the options that follow."""
    if file is None or ctx.resilient_parsing:
        return
    params = {param.name: param for param in ctx.command.params if param.name in _JOB}
    names = {
        spelling.removeprefix("--").replace("-", "_"): name
        for name, param in params.items()
        for spelling in (param.opts if isinstance(param, click.Option) else ["inputs"])
        if not spelling.startswith("-") or spelling.startswith("--")
    }
    found: dict[str, Any] = {}
    for key, value in _parsed(file).items():
        name = names.get(key.replace("-", "_"))
        if name is None:
            raise UsageError(f"{show(file)}: {_unknown(key, names, ctx.command)}")
        if name in found:
            raise UsageError(f"{show(file)}: {show(key)} is given twice, in two spellings; remove one of them")
        found[name] = _typed(params[name], value, f"{show(file)}: {show(key)}", ctx)
    ctx.default_map = found


def _parsed(file: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with open(file, "rb") as opened:
            return tomllib.loads(opened.read(_LARGEST).decode())
    except OSError as e:
        raise UsageError(f"--config {show(file)}: cannot be read ({e.strerror}); check the path") from e
    except UnicodeDecodeError as e:
        raise UsageError(f"--config {show(file)}: is not UTF-8, as TOML must be; save it as UTF-8") from e
    except tomllib.TOMLDecodeError as e:
        raise UsageError(
            f'--config {show(file)}: is not TOML: {e}; a line is like tokenizer = "gpt2" or inputs = ["corpus/"]'
        ) from e


def _unknown(key: str, names: dict[str, str], command: click.Command) -> str:
    plain = key.replace("-", "_")
    if any(option_of(plain) in param.opts for param in command.params):
        return f"{show(key)} is not part of a job; pass it on the command line"
    if close := difflib.get_close_matches(plain, names, 1):
        return f"{show(key)} is not known; did you mean {close[0].replace('_', '-')}?"
    return f"{show(key)} is not known; the options of {command.name} are known: shardmill {command.name} --help"


def _typed(param: click.Parameter, value: Any, where: str, ctx: click.Context) -> Any:
    """The value as the option takes it."""
    many, flag = param.multiple or param.nargs == -1, getattr(param, "is_flag", False)
    if isinstance(value, dict):
        raise UsageError(f"{where} is a table; options stand at the top of the file, without [sections]")
    if many:
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise UsageError(f'{where} must be a list of strings, like ["a", "b"]')
        return value
    if flag != isinstance(value, bool) or not isinstance(value, str | int | float):
        expected = "true or false" if flag else "a number or a string in quotes"
        raise UsageError(f"{where} must be {expected}, not {show(str(value))}")
    try:
        return param.type_cast_value(ctx, value)
    except click.BadParameter as e:
        raise UsageError(f"{where}: {e.message}") from e


def _save(file: Path, ctx: click.Context) -> None:
    """Replaces no file but one that this wrote."""
    from shardmill.io import storage

    lines = [_FIRST_LINE]
    for param in ctx.command.params:
        name = str(param.name)
        said = ctx.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
        if name == "inputs" or (name in _JOB and said):
            lines.append(f"{name.replace('_', '-')} = {_toml(ctx.params[name])}\n")
    try:
        data = "".join(lines).encode()
    except UnicodeEncodeError as e:
        raise UsageError(
            f"--save-config {show(file)}: TOML is UTF-8, and the name of an input is not; rename it, or name its folder"
        ) from e
    if not file.parent.is_dir():
        raise UsageError(f"--save-config {show(file)}: there is no folder {show(file.parent)}; create it first")
    if file.exists() and storage.read_small(file, _LARGEST)[: len(_FIRST_LINE)] != _FIRST_LINE.encode():
        raise OutputError(
            f"--save-config {show(file)}: exists and was not written by --save-config; choose another name"
        )
    storage.write_whole(file, data)


def _toml(value: Any) -> str:
    """As JSON, except that TOML escapes DEL too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
