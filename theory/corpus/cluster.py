"""Parts of a corpus handed to the workers of a Dask cluster; what they return is added up in whichever order it comes.

Every part is a function of files and numbers alone, so that the scheduler repeats the work of a worker that dies.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from theory.errors import UserError

# Seconds within which a scheduler must answer, and have a worker.
PATIENCE = 10


def results(
    function: Callable[..., Any], parts: Sequence[Any], common: tuple[Any, ...], scheduler: Any
) -> Iterator[Any]:
    """`function(part, *common)` for every part, as the cluster finishes them.

    **Arguments:** `scheduler`: the address of a Dask scheduler ("tcp://host:8786") or a `distributed.Client`.

    **Raises:** what the function raises (`UserError`); `UserError` where no scheduler answers, it has no worker, its workers
    lack this package, or several of them died over one part.
    """
    with _client(scheduler) as client:
        import distributed

        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError:
            raise UserError(f"the scheduler at {client.scheduler.address!r} has no worker") from None
        # Made by a task, hence made again should the only worker that holds it die; data sent by scatter would be lost.
        shared = [client.submit(_itself, each, pure=False) for each in common]
        futures = [client.submit(function, part, *shared, pure=False) for part in parts]
        try:
            for future in distributed.as_completed(futures, loop=client.loop):
                yield future.result()
                future.release()
        except distributed.KilledWorker as error:
            raise UserError(
                f"workers of the cluster died over and over while reading one part; the last was {error.last_worker.address}"
            ) from None
        except (ModuleNotFoundError, pickle.UnpicklingError) as error:
            raise UserError(f"the workers of the cluster lack what this machine has: {error}") from None
        finally:
            client.cancel(futures)


@contextmanager
def _client(scheduler: Any) -> Iterator[Any]:
    try:
        import distributed
    except ImportError:
        raise UserError("a scheduler needs the package distributed: pip install 'dask[distributed]'") from None
    if isinstance(scheduler, distributed.Client):
        yield scheduler
        return
    if not isinstance(scheduler, str) or not scheduler:
        raise UserError(f"a scheduler is an address like 'tcp://localhost:8786', found {scheduler!r}")
    try:
        client = distributed.Client(scheduler, timeout=PATIENCE, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        said = " ".join(str(error).split())
        raise UserError(f"no Dask scheduler answers at {scheduler!r} ({said})") from None
    with client:
        yield client


def _itself(value: Any) -> Any:
    return value
