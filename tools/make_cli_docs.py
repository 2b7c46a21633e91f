"""`make docs`: write docs/cli.md from the help of the commands."""

from pathlib import Path

import click

from shardmill.cli.main import cli

PAGE = Path("docs/cli.md")
HEAD = """# The command line

Written by `make docs` from `--help`. Results for people go to standard error, `--json` to standard output ([json.md](json.md)).

| exit code | meaning |
|--:|---|
| 0 | done |
| 1 | something permanent: bad input, an output that is in the way, engines that disagree |
| 2 | an option or argument that cannot work |
| 75 | temporary, such as a full disk, SIGTERM or a server that cannot be reached: run the same command again |
| 130 | Ctrl-C |
"""


def page() -> str:
    parts = [HEAD]
    for name, command in sorted(cli.commands.items()):
        context = click.Context(
            command,
            info_name=f"shardmill {name}",
            max_content_width=100,
            terminal_width=100,
            help_option_names=["-h", "--help"],
        )
        parts.append(f"## shardmill {name}\n\n```\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
