"""A plain client of the API server: JSON in, JSON out. Integration and end-to-end tests differ in how they connect."""

import http.client
import json
from typing import Any

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class RefusedError(AssertionError):
    """The API server answered with an error that the test didn't expect."""

    def __init__(self, status: int, text: str) -> None:
        try:
            self.message = str(json.loads(text).get("message"))
        except ValueError:
            self.message = text
        super().__init__(f"{status}: {self.message[:2000]}")
        self.status = status


class JsonClient:
    """Requests, each on a connection of its own."""

    def connection(self, timeout: float | None = 30) -> http.client.HTTPConnection:
        """A connection for a single request."""
        raise NotImplementedError

    def ask(
        self, method: str, path: str, body: Json | None = None, content_type: str = "application/json"
    ) -> tuple[int, str]:
        """One request; the status and the text of the answer."""
        connection = self.connection()
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": content_type, "Accept": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()

    def _do(self, method: str, path: str, body: Json | None = None, content_type: str = "application/json") -> Json:
        status, text = self.ask(method, path, body, content_type)
        if status >= 400:
            raise RefusedError(status, text)
        answer: Json = json.loads(text)
        return answer

    def get(self, path: str) -> Json:
        """Read; an error is the test's failure."""
        return self._do("GET", path)

    def find(self, path: str) -> Json | None:
        """Read, or None when it isn't there."""
        try:
            return self.get(path)
        except RefusedError as error:
            if error.status == http.client.NOT_FOUND:
                return None
            raise

    def items(self, path: str) -> list[Json]:
        """The items of a list."""
        found: list[Json] = self.get(path)["items"]
        return found

    def create(self, path: str, body: Json) -> Json:
        """Create below a collection."""
        return self._do("POST", path, body)

    def patch(self, path: str, body: Json, content_type: str = MERGE) -> Json:
        """Patch."""
        return self._do("PATCH", path, body, content_type)

    def delete(self, path: str, **options: Any) -> None:
        """Delete; what is gone is fine."""
        try:
            self._do("DELETE", path, options)
        except RefusedError as error:
            if error.status != http.client.NOT_FOUND:
                raise
