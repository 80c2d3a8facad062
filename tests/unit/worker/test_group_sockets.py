"""The connections of process groups are found and cut, and no others."""

from __future__ import annotations

import os
import socket
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from outlast.system.sockets import own_tcp_sockets
from outlast.worker.group_sockets import GroupSockets
from processes import PATIENCE
from ranks import on_ranks


def watching() -> GroupSockets:
    sockets = GroupSockets()
    sockets.watch(dist.distributed_c10d)
    sockets.active = True
    sockets.forget()  # the group that this process is in already
    return sockets


def own_connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


def test_pending_collectives_of_several_groups_end_and_what_is_not_theirs_goes_on(tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        sockets = watching()
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1, 2])]
        client, server = own_connection()
        raised = []
        if rank == 0:
            works = [dist.all_reduce(torch.ones(3), group=group, async_op=True) for group in groups]
            cut = sockets.cut()
            for work in works:
                try:
                    work.wait(timedelta(seconds=PATIENCE))
                except RuntimeError as error:
                    raised.append("closed" in str(error).lower() or "reset" in str(error).lower())
            assert cut == 3, own_tcp_sockets()
        client.sendall(b"still here")
        total = torch.ones(1)
        dist.all_reduce(total)  # the group that was made before is none of those that are watched
        return raised, server.recv(10), int(total), sockets.stuck()

    first, *others = on_ranks(3, body, tmp_path)
    assert first == ([True, True], b"still here", 3, "")
    assert others == [([], b"still here", 3, "")] * 2


def test_a_group_that_is_half_made_is_cut_off_from_a_rank_that_does_not_come(tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        sockets = watching()
        client, server = own_connection()
        _, held_up = own_connection()
        port = tmp_path / "port"
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": str(rank)}
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            port.with_suffix(".new").write_text(str(store.port))
            port.with_suffix(".new").rename(port)
            os.environ["MASTER_PORT"] = str(store.port)
            make = threading.Thread(target=half_make, args=(store, raised := []))
            make.start()
            while not sockets._making or sockets.cut() < 2:
                pass  # the client's and the server's end of the connection to the store
            make.join(PATIENCE)
            client.sendall(b"still here")
            assert held_up.fileno() >= 0
            return raised, server.recv(10)
        return None

    def half_make(store: dist.Store, raised: list[str]) -> None:
        try:
            dist.distributed_c10d._new_process_group_helper(
                2, 0, [0, 1], "gloo", store, "half", timeout=timedelta(seconds=PATIENCE)
            )
        except RuntimeError as error:
            raised.append(type(error).__name__)

    (found, _) = on_ranks(2, body, tmp_path)
    assert found[1] == b"still here"
    assert len(found[0]) == 1


def test_collectives_of_other_backends_cannot_be_left(tmp_path: Path) -> None:
    def body(_rank: int) -> str:
        sockets = watching()
        group = dist.new_group([0])
        dist.distributed_c10d._world.pg_backend_config[group] = "cpu:gloo,cuda:nccl"
        why = sockets.stuck()
        sockets.aborts_nccl = True
        return f"{why}; {sockets.stuck()}"

    (why,) = on_ranks(1, body, tmp_path)
    assert why == "collectives of nccl cannot be left, unless the function is restartable(nccl=True); "


def test_a_group_that_was_there_before_cannot_be_left(tmp_path: Path) -> None:
    def body(_rank: int) -> str:
        sockets = GroupSockets()
        sockets.watch(dist.distributed_c10d)
        return sockets.stuck()

    (why,) = on_ranks(1, body, tmp_path)
    assert "made before the restartable function" in why
