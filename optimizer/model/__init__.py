"""The nouns of the system: frozen, validated, serialisable. Imports only pydantic and the standard library."""
