"""The base of every section of a profile: unknown fields are refused by name."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of a profile; what is not set is not judged by profile."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)
