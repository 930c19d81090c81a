"""All talk with the API server. Decisions are made in `domain`; nothing here decides more than how to ask."""
