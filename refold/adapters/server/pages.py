"""Stand-in until the page lands."""

from fastapi import APIRouter, FastAPI

router = APIRouter()


def mount(app: FastAPI) -> None: ...
