"""What can go wrong with weights, said clearly and soon: no network, a file that does not fit."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from datasets.errors import SecondhandError
from datasets.upstream import hub_offline


@contextmanager
def no_waiting_for_a_hub_out_of_reach() -> Iterator[None]:
    """Offline mode for as long as the hub takes no connection.

    Its client then answers at once, from its cache where it can.
    """
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    host = address.hostname or ""
    port = address.port or (80 if address.scheme == "http" else 443)
    proxies = getproxies()
    # Behind a proxy the name need not resolve here.
    direct = not (proxies.get(address.scheme) or proxies.get("all")) or proxy_bypass(host)
    if direct and not constants.HF_HUB_OFFLINE:
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError:
            with hub_offline():
                yield
            return
    yield


@contextmanager
def weights_errors(backbone: str, weights: str | Path | None) -> Iterator[None]:
    """What goes wrong with weights, said once: the file does not fit, or the hub is not reached."""
    try:
        yield
    except SecondhandError:
        raise
    except (TypeError, AssertionError):
        raise
    except Exception as error:
        detail = str(error).strip().splitlines()
        first = detail[0][:110] if detail else type(error).__name__
        if weights is not None:
            raise SecondhandError(
                f"--weights {weights}: not the weights of {backbone} ({first}); name the backbone "
                "that they were saved from"
            ) from None
        raise SecondhandError(
            f"the weights of {backbone} could not be downloaded ({type(error).__name__}: {first}); "
            "without a network use --backbone embedded, or --weights FILE with a copy of them"
        ) from None
