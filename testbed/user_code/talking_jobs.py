"""Training jobs that write lines in each iteration. Imported by workers only."""

import os

from testbed.user_code.tiny_jobs import Steps


class Talks(Steps):
    def train(self, batch, model, optimizer):
        print(f"iteration {self.iteration + 1}")
        return super().train(batch, model, optimizer)


class Floods(Steps):
    """Writes 100,000 numbered lines in each iteration, half of them from a child process."""

    def train(self, batch, model, optimizer):
        self._print(0)
        child = os.fork()
        if not child:
            self._print(1)
            os._exit(0)
        os.waitpid(child, 0)
        return super().train(batch, model, optimizer)

    def _print(self, part):
        first = (2 * self.iteration + part) * 50_000
        os.write(1, "".join(f"{number:099d}\n" for number in range(first, first + 50_000)).encode())
