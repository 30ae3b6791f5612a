"""msgspec structs as JSON responses and in the OpenAPI document.

FastAPI describes pydantic models by itself; our contract is made of msgspec structs. A route says
`responses=returns(Verdict)` and returns `StructResponse(verdict)`; `create_api(structs=[Verdict])` puts the schemas into
the document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import JSONResponse

_REF = "#/components/schemas/{name}"


class StructResponse(JSONResponse):
    """Anything msgspec encodes, as JSON."""

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def returns(struct: type, status: int = 200, description: str = "OK") -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: this status carries this struct."""
    schema = {"$ref": _REF.format(name=struct.__name__)}
    return {status: {"description": description, "content": {"application/json": {"schema": schema}}}}


def schemas(structs: Sequence[Any]) -> dict[str, Any]:
    """The components for `structs` and all that they contain."""
    _, components = msgspec.json.schema_components(structs, ref_template=_REF)
    return dict(components)
