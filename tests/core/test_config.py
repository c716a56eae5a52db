"""Configs: defaults < file < overrides, and mistakes that are named."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest

from vla_rl.algorithms.actor import ActorConfig
from vla_rl.core.config import config_from_dict, config_to_dict, load_config, read_yaml, save_config
from vla_rl.core.config_files import config_file
from vla_rl.core.errors import ConfigError
from vla_rl.policies.best_of_n import BestOfNConfig
from vla_rl.training.config import RunConfig


@dataclass(frozen=True)
class Inner:
    lr: float = 1e-3
    sizes: tuple[int, ...] = (1, 2)
    kind: Literal["a", "b"] = "a"
    limit: int | None = None
    names: list[str] | None = None


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    seed: int = 0


@dataclass(frozen=True)
class Tuned:
    inner: Inner = field(default_factory=lambda: Inner(lr=0.5, kind="b"))
    outer: Outer = field(default_factory=lambda: Outer(Inner(limit=3), seed=1))


@dataclass(frozen=True)
class MayBeTuned:
    tuned: Tuned | None = None


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Paint:
    color: Color = Color.RED
    coats: int = 1


@dataclass(frozen=True)
class Wall:
    paint: Paint | None = None


@dataclass(frozen=True)
class AnyValue:
    anything: Any = None


@dataclass(frozen=True)
class Words:
    mode: str = ""
    sure: bool = False


def test_an_optional_section_is_saved_loaded_and_checked_like_any_other(tmp_path: Path) -> None:
    for config in (Wall(), Wall(Paint(coats=2))):
        save_config(config, tmp_path / "config.yaml")
        assert load_config(Wall, tmp_path / "config.yaml") == config
    assert load_config(Wall, overrides=["paint.color=red"]).paint == Paint()
    with pytest.raises(ConfigError, match="Did you mean 'coats'"):
        load_config(Wall, overrides=["paint.coat=2"])
    with pytest.raises(ConfigError, match=r"paint.coats is True; expected a number"):
        load_config(Wall, overrides=["paint.coats=true"])


@pytest.mark.parametrize("value", [None, 3, "word", [1, 2]])
def test_an_option_of_any_type_comes_back(value: Any, tmp_path: Path) -> None:
    save_config(AnyValue(value), tmp_path / "config.yaml")
    assert load_config(AnyValue, tmp_path / "config.yaml") == AnyValue(value)


def test_overrides_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("seed: 3\ninner: {lr: 0.5, kind: b}\n")
    config = load_config(Outer, file, ["inner.lr=1e-4", "inner.sizes=[3, 4]", "inner.limit=7"])
    assert config == Outer(Inner(lr=1e-4, sizes=(3, 4), kind="b", limit=7), seed=3)


def test_a_section_in_which_one_option_is_set_keeps_the_defaults_of_its_field(tmp_path: Path) -> None:
    tuned = load_config(Tuned, overrides=["inner.limit=7", "outer.inner.lr=0.1"])
    assert tuned == Tuned(Inner(lr=0.5, kind="b", limit=7), Outer(Inner(lr=0.1, limit=3), seed=1))
    assert load_config(MayBeTuned, overrides=["tuned.inner.limit=7"]).tuned == Tuned(Inner(0.5, kind="b", limit=7))

    # What was saved before an option was there means the option's own default, not what the field sets today.
    assert config_from_dict(Tuned, {"inner": {"limit": 7}}).inner == Inner(limit=7)

    run = load_config(
        RunConfig, config_file("imagined"), ["learning.actor.batch_size=2", "learning.best_of_n.offset_std=2"]
    )
    usual = load_config(RunConfig, config_file("imagined")).learning
    assert run.learning == replace(
        usual, actor=replace(usual.actor, batch_size=2), best_of_n=replace(usual.best_of_n, offset_std=2.0)
    )
    assert usual.actor != ActorConfig(), "else nothing would be shown"
    assert usual.best_of_n != BestOfNConfig()


def test_a_saved_config_loads_equal(tmp_path: Path) -> None:
    config = Outer(Inner(lr=0.1, sizes=(), limit=2), seed=9)
    save_config(config, tmp_path / "config.yaml")
    assert load_config(Outer, tmp_path / "config.yaml") == config
    assert config_to_dict(config)["inner"]["sizes"] == []


@pytest.mark.parametrize(
    ("override", "part_of_message"),
    [
        ("inner.lrr=1", "Did you mean 'lr'"),
        ("sede=1", "Did you mean 'seed'"),
        ("inner.kind=c", "one of: a, b"),
        ("inner.lr=fast", "inner.lr"),
        ("inner=3", "must be a section"),
        ("seed", "has no '='"),
        ("seed=[1", "not valid YAML"),
        ("seed.deeper=1", "seed"),
        ("inner.sizes=3", "inner.sizes is 3; expected a list, sizes=[3]"),
        ("inner.names=pos", "inner.names is 'pos'; expected a list, names=[pos]"),
        ("inner={seed: 1, seed: 2}", "'seed' stands there twice"),
    ],
)
def test_a_mistake_is_named_in_one_line(override: str, part_of_message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(Outer, overrides=[override])
    assert part_of_message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_that_stands_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("inner: {lr: 0.1}\nseed: 1\ninner: {kind: b}\n")
    with pytest.raises(ConfigError, match=r"config\.yaml.*'inner' stands there twice.*line 3"):
        load_config(Outer, file)


def test_a_key_that_is_merged_in_and_said_anew_stands_once(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("x: {anything: &b {p: 1, q: 2}}\ny: &d {<<: *b, p: 3}\nz: {<<: *d, q: 4}\n")
    assert read_yaml(file)["z"] == {"p": 3, "q": 4}


@pytest.mark.parametrize("content", ["[1, 2]", "a: [", "just words"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        load_config(Outer, file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(Outer, tmp_path / "absent.yaml")


@pytest.mark.parametrize("word", ["off", "on", "yes", "no"])
def test_words_that_old_yaml_takes_for_booleans_stay_words(word: str, tmp_path: Path) -> None:
    (tmp_path / "words.yaml").write_text(f"mode: {word}\nsure: true\n")
    from_file = load_config(Words, tmp_path / "words.yaml")
    assert from_file == load_config(Words, overrides=[f"mode={word}", "sure=true"]) == Words(word, True)
    save_config(from_file, tmp_path / "again.yaml")
    assert load_config(Words, tmp_path / "again.yaml") == from_file


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("12:30", "12:30"),
        ("010", "010"),
        ("2024-01-31", "2024-01-31"),
        ("'7'", "7"),
        ("'1e-3'", "1e-3"),
        ("1e-3", 1e-3),
        ("{gain: 1e-3, bias: .5}", {"gain": 1e-3, "bias": 0.5}),
        ("-0.0", -0.0),
        ("0x10", 16),
    ],
)
def test_a_value_is_what_was_written_and_comes_back(text: str, meant: Any, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(f"anything: {text}\n")
    from_file = load_config(AnyValue, tmp_path / "values.yaml")
    assert from_file == load_config(AnyValue, overrides=[f"anything={text}"]) == AnyValue(meant)
    assert type(from_file.anything) is type(meant)
    save_config(from_file, tmp_path / "again.yaml")
    assert load_config(AnyValue, tmp_path / "again.yaml") == from_file


def test_who_made_the_mistake_is_named(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("seed: 3\n")
    bad.write_text("sede: 3\n")
    with pytest.raises(ConfigError, match=r"^overrides: unknown key 'sede'"):
        load_config(Outer, good, ["sede=4"])
    with pytest.raises(ConfigError, match=r"bad\.yaml: unknown key 'sede'"):
        load_config(Outer, bad, ["seed=4"])
