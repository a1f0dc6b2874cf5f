"""The state of the copies, for operators: `mqadmin haStatus` and `getBrokerEpoch`, and their part of the runtime information."""

from __future__ import annotations

from typing import Final

from kappamq.broker.copies.following import Following
from kappamq.broker.copies.log_sender import LogSender
from kappamq.broker.copies.members.changing import MemberChanges
from kappamq.broker.copies.members.operations import GroupOperations
from kappamq.broker.copies.node_role import NodeRole
from kappamq.broker.copies.serving import Followers
from kappamq.broker.requests.request import Handler, Request
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.config.copies import CopiesConfig
from kappamq.errors import IllegalOperation, InvalidParameter
from kappamq.protocol.bodies.copies import BrokerEpochs, Epoch, HaClient, HaConnection, HaStatus
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import ChangeMembers, GetBrokerEpochs, GetHaStatus, TransferLeader
from kappamq.store.message_store import MessageStore

MASTER, SLAVE = "master", "slave"
_NAMED_MAX: Final = 16
_TERMS_MAX: Final = 100


class CopiesStatus:
    def __init__(
        self,
        config: CopiesConfig,
        broker: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        role: NodeRole,
        followers: Followers,
        following: Following,
        operations: GroupOperations | None,
        changes: MemberChanges | None,
    ) -> None:
        self._config = config
        self._broker = broker
        self._store = store
        self._clock = clock
        self._role = role
        self._followers = followers
        self._following = following
        self._operations = operations
        self._changes = changes

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
            RequestCode.GET_BROKER_EPOCH_CACHE: self.epochs,
            RequestCode.TRANSFER_LEADER: self.transfer_leader,
            RequestCode.CHANGE_MEMBERS: self.change_members,
        }

    @property
    def role(self) -> str:
        """The present state, not the configured one."""
        return MASTER if self._followers.is_serving or self._role.is_master else SLAVE

    # -- requests ----------------------------------------------------------------------------------------------------------

    def ha_status(self, request: Request[GetHaStatus]) -> Frame:
        slaves = [self._slave(link) for link in self._followers.following]
        if self._operations is not None:
            slaves = [self._replica(*replica) for replica in self._operations.replicas()]
        status = HaStatus(
            master=self.role == MASTER,
            end=self._store.log.end,
            in_sync_slaves=sum(slave.in_sync for slave in slaves),
            slaves=slaves,
            client=self._client(),
        )
        return request.reply(body=status.encode())

    def epochs(self, request: Request[GetBrokerEpochs]) -> Frame:
        store, broker = self._store, self._broker
        epochs = BrokerEpochs(
            cluster=broker.cluster,
            broker_name=broker.name,
            broker_id=self._role.broker_id,
            epochs=[Epoch(term, start) for term, start in self._terms()],
            end=store.log.end,
        )
        return request.reply(body=epochs.encode())

    async def transfer_leader(self, request: Request[TransferLeader]) -> Frame:
        """Answered when the other member leads."""
        if self._operations is None:
            raise IllegalOperation(
                "this broker is not in a Raft group: to make a slave the master, restart it with another role"
            )
        leader = await self._operations.transfer(request.header.member)
        return request.reply(body=leader.encode())

    async def change_members(self, request: Request[ChangeMembers]) -> Frame:
        """Answered when a majority has the new list, or the new address."""
        header, changes = request.header, self._changes
        if changes is None:
            raise IllegalOperation(
                "this broker is not in a Raft group: slaves join and leave as they are started and stopped"
            )
        match header.action:
            case "add":
                await changes.add(header.member, header.address)
            case "remove":
                await changes.remove(header.member)
            case "replace":
                await changes.replace(header.member, header.address)
            case _:
                raise InvalidParameter(f"action must be add, remove or replace; got {header.action[:80]!r}")
        return request.reply()

    def _terms(self) -> list[tuple[int, int]]:
        """The last terms of the log, and where each begins."""
        if self._operations is None:
            return [(self._role.version, self._store.log.min)]
        return self._operations.terms()[-_TERMS_MAX:]

    def _replica(self, address: str, flushed: int, connected: bool) -> HaConnection:
        """Another member of a Raft group, as its leader knows it."""
        behind = max(0, self._store.log.end - flushed)
        return HaConnection(
            address=address,
            acknowledged=flushed,
            diff=behind,
            in_sync=connected and behind <= self._config.lag_bytes_max,
            bytes_per_s=0,
            sent=flushed,
        )

    def _slave(self, link: LogSender) -> HaConnection:
        feed = link.feed
        assert feed is not None, "it does not follow yet"
        behind = max(0, self._store.log.end - feed.written)
        return HaConnection(
            address=link.peer,
            acknowledged=feed.written,
            diff=behind,
            in_sync=behind <= self._config.lag_bytes_max,
            bytes_per_s=link.sent_per_s,
            sent=feed.sent,
        )

    def _client(self) -> HaClient:
        following = self._following
        return HaClient(
            master=following.place,
            bytes_per_s=following.received_per_s,
            end=self._store.log.end,
            heard_ms=self._ms_of(following.heard_at),
            reported_ms=self._ms_of(following.reported_at),
            master_flushed=following.safe,
            active=following.is_connected,
        )

    def _ms_of(self, liveness: float | None) -> int:
        if liveness is None:
            return 0
        return self._clock.message_ms() - round((self._clock.liveness() - liveness) * 1000)

    # -- the runtime information -------------------------------------------------------------------------------------------

    def runtime(self) -> dict[str, str]:
        followers, following = self._followers, self._following
        slaves = followers.following
        table = {
            "kappamqRole": self.role,
            "kappamqTerm": str(self._role.version),
            "kappamqFollowers": str(len(slaves)),
            "kappamqCopiesMissing": followers.held.missing() or "nothing",
        }
        if self.role == MASTER:
            behind = "; ".join(f"{_name(link)}: {self._slave(link).diff}" for link in slaves[:_NAMED_MAX])
            table["kappamqFollowersBehindBytes"] = behind or "none"
        elif following.is_active:
            table |= {
                "kappamqMaster": following.place or "none",
                "kappamqMasterSpeaks": following.speaks or "nothing",
                "kappamqMasterBehindBytes": str(max(0, following.master_end - self._store.log.end)),
                "kappamqFollowing": following.problem or ("yes" if following.is_connected else "not yet"),
            }
        if self._operations is not None:
            table |= {
                f"kappamqRaft{name[0].upper()}{name[1:]}": str(value)
                for name, value in self._operations.status().items()
            }
        return table


def _name(link: LogSender) -> str:
    return f"{link.address} (Apache)" if link.broker_id is None else f"{link.address} (id {link.broker_id})"
