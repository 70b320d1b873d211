"""An adapter whose framework is not installed names the extra to install."""

import sys
from importlib import import_module

import pytest

from refold import InvalidConfiguration

NEEDED = {
    "agent_framework": ("agent_framework", "agent-framework"),
    "claude_sdk": ("claude_agent_sdk", "claude-sdk"),
    "google_adk": ("google.adk", "adk"),
    "langgraph": ("langgraph", "langgraph"),
    "openai_agents": ("agents", "openai-agents"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "strands": ("strands.session.session_repository", "strands"),
}


@pytest.mark.parametrize("name", NEEDED)
def test_without_its_extra_an_adapter_names_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, extra = NEEDED[name]
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(
        sys.modules, f"refold.adapters.frameworks.{name}", raising=False
    )

    with pytest.raises(InvalidConfiguration, match=rf"'refold\[{extra}\]'"):
        import_module(f"refold.adapters.frameworks.{name}")
