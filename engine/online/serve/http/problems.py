"""HTTP errors in the format of the OpenAI API."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from starlette.responses import JSONResponse

KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass(eq=False)
class HttpProblem(Exception):
    """An error response: HTTP status and a one-sentence message.

    param: the invalid field. code: OpenAI's error code, if any. retry_after_s: the header `Retry-After`.
    """

    status: int
    reason: str
    _: KW_ONLY
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None

    def __post_init__(self) -> None:
        super().__init__(self.reason)

    def body(self) -> dict[str, object]:
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.reason, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def template_problem(error: Exception) -> HttpProblem:
    """Return the error response for messages that the chat template refuses."""
    return HttpProblem(400, " ".join(str(error).split())[:400], param="messages")
