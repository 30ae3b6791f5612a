"""Settings: read once, at the door, from `GOODPUT_*` environment variables.

A service's `settings.py` subclasses `CommonSettings`; nothing deeper down reads the environment. A secret may come from a
file instead, the way Docker and Kubernetes hand them over: `GOODPUT_DATABASE_URL_FILE=/run/secrets/database_url`. A bad
value ends the start with the variable's name and what was expected there, never with the value.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, StringConstraints, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from goodput_common.runtime.logs import redact
from goodput_common.runtime.process import ExitCode
from goodput_common.runtime.run_dir import default_run_dir

ENV_PREFIX = "GOODPUT_"
_FILE_BYTES_MAX = 64 * 1024

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Port = Annotated[int, Field(ge=0, le=65535)]
LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(lambda v: v.upper() if isinstance(v, str) else v)
]


class SettingsError(ValueError):
    """One or more variables are missing or wrong; the text has a line for each."""

    exit_code = ExitCode.MISCONFIGURED
    do_next = "set the variables named above and start again"


class CommonSettings(BaseSettings):
    """What every service is told. Values given as arguments win over the environment."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="ignore", hide_input_in_errors=True, env_ignore_empty=True
    )

    nats_url: SecretStr = Field(SecretStr("nats://127.0.0.1:4222"), description="bus; may carry user and password")
    nats_user: str | None = None
    nats_password: SecretStr | None = None
    database_url: SecretStr = Field(
        SecretStr("postgresql+asyncpg://goodput@127.0.0.1:5432/goodput"),
        description="postgresql://user:password@host:port/name",
    )
    fabric: Name = Field("default", description="the region that this service is responsible for")
    host: Name = Field(default_factory=lambda: socket.gethostname().split(".")[0] or "localhost")
    run_dir: Path = Field(default_factory=default_run_dir)
    http_host: str = "127.0.0.1"
    http_port: Port = 8080
    api_tokens: SecretStr = Field(
        SecretStr(""), description='JSON: {"<token or sha256:hex>": {"role": …, "jobs": […], "name": …}}'
    )
    log_level: LogLevel = "INFO"
    log_json: bool | None = Field(None, description="unset: text on a terminal, JSON elsewhere")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(explain(error)) from None

    @field_validator("nats_url")
    @classmethod
    def _nats(cls, value: SecretStr) -> SecretStr:
        servers = value.get_secret_value().split(",")
        if not all(each.strip().startswith(("nats://", "tls://", "ws://", "wss://")) for each in servers):
            raise ValueError("expected nats://host:port, several separated by commas")
        return value

    @property
    def nats_address(self) -> str:
        """The bus's URL for logs, without its password."""
        return redact(self.nats_url.get_secret_value())

    @property
    def database_address(self) -> str:
        """The database's URL for logs, without its password."""
        return redact(self.database_url.get_secret_value())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, FileVariables(settings_cls), env_settings)


class ServiceSettings(CommonSettings):
    """What a service with a database and an API is told besides."""

    database_pool: int = Field(8, ge=3, le=100, description="connections of the pool; three more serve lease and outbox")


class FileVariables(PydanticBaseSettingsSource):
    """`GOODPUT_<FIELD>_FILE`: the value is the file's text without the trailing newline. Setting both forms is an error: one
    of them would be silently ignored."""

    def __init__(self, settings_cls: type[BaseSettings], environ: Mapping[str, str] | None = None) -> None:
        super().__init__(settings_cls)
        self._environ = {key.upper(): value for key, value in (os.environ if environ is None else environ).items()}

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        variable = f"{ENV_PREFIX}{field_name}".upper()
        path = self._environ.get(f"{variable}_FILE")
        if not path:
            return None, field_name, False
        if self._environ.get(variable):
            raise SettingsError(f"{variable} and {variable}_FILE are both set: keep one of them")
        try:
            with Path(path).open(encoding="utf-8") as file:
                text = file.read(_FILE_BYTES_MAX + 1)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise SettingsError(f"{variable}_FILE: cannot read {path}: {reason}") from None
        if len(text) > _FILE_BYTES_MAX:
            raise SettingsError(f"{variable}_FILE: {path} is larger than {_FILE_BYTES_MAX} bytes")
        return text.strip(), field_name, self.field_is_complex(field)

    def __call__(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, field in self.settings_cls.model_fields.items():
            value, key, is_complex = self.get_field_value(field, name)
            if value is not None:
                found[key] = self.prepare_field_value(name, field, value, is_complex)
        return found


def explain(error: ValidationError) -> str:
    """A line for each wrong variable: its name and what is expected; values are left out, some are secrets."""
    lines = []
    for each in error.errors(include_url=False, include_input=False):
        path = ".".join(str(part) for part in each["loc"])
        variable = f"{ENV_PREFIX}{path}".upper() if path else "settings"
        expected = (
            "is missing: it has no default" if each["type"] == "missing" else each["msg"].removeprefix("Value error, ")
        )
        lines.append(f"{variable}: {expected}")
    return "\n".join(lines)
