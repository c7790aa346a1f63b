"""Variables mean what the table says, and nonsense is quoted."""

import pytest
from deepspeed.ops.op_builder import environment
from deepspeed.ops.op_builder.errors import ConfigurationError


@pytest.mark.parametrize("value", ["1", "true", "YES", "on", " 1 "])
def test_switch_on(monkeypatch, value):
    monkeypatch.setenv("DS_BUILD_OPS", value)
    assert environment.switch("DS_BUILD_OPS") is True


@pytest.mark.parametrize("value", ["0", "False", "no", "OFF"])
def test_switch_off(monkeypatch, value):
    monkeypatch.setenv("DS_BUILD_OPS", value)
    assert environment.switch("DS_BUILD_OPS") is False


@pytest.mark.parametrize("value", [None, "", "  "])
def test_empty_means_unset(monkeypatch, value):
    monkeypatch.delenv("DS_BUILD_OPS", raising=False)
    if value is not None:
        monkeypatch.setenv("DS_BUILD_OPS", value)
    assert environment.switch("DS_BUILD_OPS") is None


@pytest.mark.parametrize("value", ["2", "maybe", "1 0", "tru"])
def test_anything_else_is_an_error_that_quotes_it(monkeypatch, value):
    monkeypatch.setenv("DS_BUILD_OPS", value)
    with pytest.raises(ConfigurationError, match="DS_BUILD_OPS") as caught:
        environment.switch("DS_BUILD_OPS")
    assert repr(value) in str(caught.value) and "unset DS_BUILD_OPS" in str(caught.value)


def test_job_limit_prefers_our_own_variable(monkeypatch):
    monkeypatch.setenv("MAX_JOBS", "3")
    monkeypatch.delenv("DS_BUILD_JOBS", raising=False)
    assert environment.job_limit() == 3
    monkeypatch.setenv("DS_BUILD_JOBS", "5")
    assert environment.job_limit() == 5


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "²"])
def test_job_limit_rejects_what_is_no_count(monkeypatch, value):
    monkeypatch.setenv("MAX_JOBS", value)
    monkeypatch.delenv("DS_BUILD_JOBS", raising=False)
    with pytest.raises(ConfigurationError, match="MAX_JOBS"):
        environment.job_limit()


def test_words_are_split_like_a_shell_does(monkeypatch):
    monkeypatch.setenv("CFLAGS", "-O1 -DNAME='a b'")
    assert environment.words("CFLAGS") == ("-O1", "-DNAME=a b")
    monkeypatch.setenv("CFLAGS", "-DNAME='a b")
    with pytest.raises(ConfigurationError, match="CFLAGS"):
        environment.words("CFLAGS")


def test_relative_xdg_cache_home_does_not_count(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert environment.cache_home() == tmp_path / ".cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert environment.cache_home() == tmp_path / "xdg"


def test_home_of_a_user_who_does_not_exist_is_an_error(monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "~no-such-user-zz/x")
    with pytest.raises(ConfigurationError, match="no-such-user-zz"):
        environment.extensions_dir()


def test_without_any_home_the_cache_is_not_put_in_the_current_folder(monkeypatch):
    monkeypatch.setenv("HOME", "~")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert environment.cache_home().is_absolute()
