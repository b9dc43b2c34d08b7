"""The steps in which losses and values of parts are looked at again: user code may do something else later.

A weight that begins at an epoch, a warm-up that ends: the first steps show none of it.
All workers decide alike, from the iteration and the epoch, also when a step is repeated after a crash.
"""

_EACH_EPOCH_UP_TO = 4  # counted from 1
_FIRST_POWER = 4  # steps: those before it are near the first one


def is_check_point(iteration: int, *, epoch: int, begins_epoch: bool) -> bool:
    """Whether losses and values of parts are looked at again in this one. epoch: in which it begins, counted from 0.

    It begins epoch 2, 3, 4, 8, 16 or a further power of two; or it follows 4, 8, 16, ... steps within the first epoch,
    which may have no end. So what begins later is found before the job is about twice as far.
    """
    if epoch == 0:
        return iteration >= _FIRST_POWER and _is_power_of_two(iteration)
    number = epoch + 1
    return begins_epoch and (number <= _EACH_EPOCH_UP_TO or _is_power_of_two(number))


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
