"""jiyi (记忆): the memory service for LLM agents that runs on plain Redis or Valkey."""

__version__ = "0.1.0"
