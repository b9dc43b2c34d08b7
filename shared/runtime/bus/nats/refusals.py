"""What the server does not permit to a connection. It says so in an error that belongs to no request."""

import re

from elasticflow.shared.errors import NotPermitted
from elasticflow.shared.runtime.bus.nats.replies import Answers

# Of the server's error; nats-py makes all letters small.
_REFUSED = re.compile(r'(?P<verb>publish|subscription) to "(?P<subject>[^"]+)"')


class Refusals:
    """url: without secrets."""

    def __init__(self, url: str, answers: Answers) -> None:
        self._url, self._answers = url, answers
        self._subscriptions = set[str]()

    def note(self, error: str) -> None:
        """Requests to the subject fail at once, without their timeout."""
        refused = _REFUSED.search(error)
        if refused is None:
            return
        if refused["verb"] == "publish":
            self._answers.refuse(refused["subject"], lambda subject: NotPermitted(self._url, subject))
        else:
            self._subscriptions.add(refused["subject"])

    def check_subscription(self, subject: str) -> None:
        """After a flush: raises NotPermitted if the server has refused the subscription."""
        if subject.lower() in self._subscriptions:
            raise NotPermitted(self._url, subject)
