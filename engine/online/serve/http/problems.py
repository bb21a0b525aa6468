"""Errors over HTTP, in the form that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class HttpProblem(Exception):
    """A request that is answered with an error: HTTP status, a sentence for a person, and what a program can read.

    `param` names the field at fault, `code` is OpenAI's name of the case where it has one; `retry_after_s` goes out
    as the header `Retry-After`.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.reason, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole answer."""
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)
