"""Who hears what in a running broker: the whole list, so that a listener that is lost or added is seen in review."""

from __future__ import annotations

from pathlib import Path

from tests.broker.running import run, running


def test_who_hears_what(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            assert broker.events.listeners() == {
                "TopicChanged": ["Subscriptions.topic_changed", "Registration.topic_has_changed"],
                "TopicDeleted": [
                    "Offsets.topic_deleted",
                    "PendingResets.topic_deleted",
                    "Subscriptions.topic_deleted",
                    "LastPulls.topic_deleted",
                    "TopicFiles.topic_deleted",
                    "Stats.topic_deleted",
                ],
                "TopicForgotten": ["QueueEnds.topic_forgotten"],
                "GroupChanged": ["Subscriptions.group_changed", "LastPulls.group_changed"],
                "ResetChanged": ["Subscriptions.reset_changed"],
                "Resubscribed": ["Pulls.resubscribed"],
                "Subscribed": ["Consumers.subscribed"],
                "MembersChanged": ["GroupNotices.members_changed"],
                "ConnectionLost": ["Pulls.connection_lost", "ClientExpiry.connection_lost"],
                "LogShortened": ["Tables.log_shortened"],
                "LogFilePrepared": ["LogWriter.log_file_prepared"],
                "SettingsChanged": [
                    "Topics.settings_changed",
                    "Registration.settings_changed",
                    "KernelCopies.settings_changed",
                    "KernelWaits.settings_changed",
                ],
                "KernelNoted": ["KernelWaits.noted"],
                "ClockStepped": ["Delivery.clock_stepped"],
                "CommitsRecorded": ["Stats.commits_recorded"],
                "SentBack": ["Stats.sent_back"],
                "MasterFound": ["Copies.master_found", "MasterRole.master_found"],
                "Tick": [
                    "Copies.ticked",
                    "ClockWatch.ticked",
                    "Pulls.ticked",
                    "ClientExpiry.ticked",
                    "LostPages.ticked",
                    "Stats.ticked",
                    "HalfFollower.ticked",
                    "TimerFollower.ticked",
                    "Delivery.tick",
                ],
            }

    run(test())
