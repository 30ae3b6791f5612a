"""Settings from the environment and from secret files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from goodput_common.runtime import run_dir
from goodput_common.runtime.run_dir import default_run_dir
from goodput_common.runtime.settings import CommonSettings, SettingsError

PASSWORD = "hunter2-and-more"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.upper().startswith("GOODPUT_"):
            monkeypatch.delenv(name)


def test_defaults_suffice_on_one_machine() -> None:
    settings = CommonSettings()
    assert settings.nats_url.get_secret_value() == "nats://127.0.0.1:4222"
    assert settings.fabric == "default"
    assert settings.host
    assert settings.http_host == "127.0.0.1"


def test_environment_wins_over_defaults_and_arguments_over_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOODPUT_FABRIC", "eu-1")
    monkeypatch.setenv("GOODPUT_LOG_LEVEL", "debug")
    monkeypatch.setenv("GOODPUT_HTTP_PORT", "9000")
    settings = CommonSettings(http_port=9001)
    assert (settings.fabric, settings.log_level, settings.http_port) == ("eu-1", "DEBUG", 9001)


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOODPUT_FABRIC", "")
    assert CommonSettings().fabric == "default"


def test_a_secret_is_read_from_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "database_url"
    secret.write_text(f"postgresql://goodput:{PASSWORD}@db/goodput\n")
    monkeypatch.setenv("GOODPUT_DATABASE_URL_FILE", str(secret))
    settings = CommonSettings()
    assert settings.database_url.get_secret_value() == f"postgresql://goodput:{PASSWORD}@db/goodput"
    assert settings.database_address == "postgresql://goodput:***@db/goodput"


def test_a_file_serves_fields_that_a_service_adds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Own(CommonSettings):
        retries: int = 3

    (tmp_path / "retries").write_text("7\n")
    monkeypatch.setenv("GOODPUT_RETRIES_FILE", str(tmp_path / "retries"))
    assert Own().retries == 7


def test_both_forms_of_a_secret_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(PASSWORD)
    monkeypatch.setenv("GOODPUT_NATS_PASSWORD", PASSWORD)
    monkeypatch.setenv("GOODPUT_NATS_PASSWORD_FILE", str(tmp_path / "x"))
    with pytest.raises(SettingsError, match="GOODPUT_NATS_PASSWORD and GOODPUT_NATS_PASSWORD_FILE are both set"):
        CommonSettings()


def test_a_missing_secret_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOODPUT_API_TOKENS_FILE", str(tmp_path / "absent"))
    with pytest.raises(SettingsError, match=r"GOODPUT_API_TOKENS_FILE: cannot read .*absent: No such file"):
        CommonSettings()


def test_an_oversized_or_binary_secret_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "big").write_text("x" * 100_000)
    monkeypatch.setenv("GOODPUT_API_TOKENS_FILE", str(tmp_path / "big"))
    with pytest.raises(SettingsError, match="larger than 65536 bytes"):
        CommonSettings()
    (tmp_path / "big").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="not UTF-8"):
        CommonSettings()


def test_an_error_names_every_wrong_variable_and_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOODPUT_HTTP_PORT", "eighty")
    monkeypatch.setenv("GOODPUT_FABRIC", "no such.fabric *")
    monkeypatch.setenv("GOODPUT_NATS_URL", f"http://x:{PASSWORD}@bus")
    with pytest.raises(SettingsError) as raised:
        CommonSettings()
    lines = str(raised.value).splitlines()
    assert [line.split(":")[0] for line in sorted(lines)] == ["GOODPUT_FABRIC", "GOODPUT_HTTP_PORT", "GOODPUT_NATS_URL"]
    assert "expected nats://host:port" in str(raised.value)
    for value in (PASSWORD, "eighty", "no such"):
        assert value not in str(raised.value)
    assert raised.value.exit_code == 2


def test_a_missing_required_variable_is_named() -> None:
    class Own(CommonSettings):
        cluster: str = Field(...)

    with pytest.raises(SettingsError, match="GOODPUT_CLUSTER: is missing"):
        Own()


def test_secrets_are_in_no_representation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NATS_PASSWORD", "API_TOKENS"):
        monkeypatch.setenv(f"GOODPUT_{name}", PASSWORD)
    monkeypatch.setenv("GOODPUT_NATS_URL", f"nats://x:{PASSWORD}@bus")
    monkeypatch.setenv("GOODPUT_DATABASE_URL", f"postgresql://x:{PASSWORD}@db/x")
    settings = CommonSettings()
    shown = f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()} {settings.nats_address}"
    assert PASSWORD not in shown


def test_run_dir_given_is_taken(tmp_path: Path) -> None:
    assert default_run_dir({"GOODPUT_RUN_DIR": str(tmp_path)}) == tmp_path


def test_run_dir_is_the_system_one_where_it_may_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_dir, "SYSTEM_RUN_DIR", tmp_path / "goodput")
    assert default_run_dir({}) == tmp_path / "goodput"


def test_run_dir_falls_back_to_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_dir, "SYSTEM_RUN_DIR", tmp_path / "goodput")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert default_run_dir({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/goodput")
    assert default_run_dir({}).name.startswith("goodput-")
