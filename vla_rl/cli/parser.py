"""The argument parser of a verb: settings written alike everywhere, defaults in the help, the nearest name for a
misspelt option.
"""

import argparse
from typing import NoReturn

from vla_rl.core.errors import UserError, did_you_mean

_UNKNOWN = "unrecognized arguments: "


def add_settings(parser: argparse.ArgumentParser, help: str) -> None:
    """Add the settings of a verb: ``section.key=value``, before, between or after the options."""
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help=help)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the description as written, and adds the default of every option whose help does not state it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        says_nothing = action.default in (None, False, "", argparse.SUPPRESS) or action.default == []
        if says_nothing or not action.option_strings or "default" in text:
            return text
        return f"{text} (default: %(default)s)"


class VerbParser(argparse.ArgumentParser):
    """A parser whose errors are one line: what was found, what was expected, what to do."""

    def error(self, message: str) -> NoReturn:
        if not message.startswith(_UNKNOWN):
            raise UserError(f"{self.prog}: {message}. {self.prog} --help lists the options")
        unknown = message.removeprefix(_UNKNOWN).split()[0]
        name, _, value = unknown.partition("=")
        if "." in name:
            raise UserError(f"{self.prog}: write a setting without dashes: {name.lstrip('-')}={value or 'VALUE'}")
        options = [option for option in self._option_string_actions if option.startswith("--")]
        raise UserError(f"{self.prog} has no option {name!r}.{did_you_mean(name, options)}")
