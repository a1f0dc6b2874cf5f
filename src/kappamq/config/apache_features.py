"""RocketMQ's properties that set nothing here, grouped by the feature they belong to.

This is the single source of truth for such a property: whether it is known, what `getBrokerConfig` shows for it, and what
happens if it is set. Dashboards and migrations read the values, so an absent feature shows the value that disables it. A
property without such a value (a thread count, an interval) is known, but not shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kappamq.errors import ConfigError

_NO_VALUE = ("", "null")  # Java tools write null for unset values


@dataclass(frozen=True, kw_only=True)
class Feature:
    """`because` completes the sentence "name=value cannot be honoured: ..." or "... has no effect: ..."."""

    because: str
    required: Mapping[str, str] = field(default_factory=dict)
    """Values, separated by |, that a broker accepts. Any other requests a feature that would be missed, and is refused."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """The value that applies here. Any other has no effect, and is reported."""
    tuning: str = ""
    """Names without a value that would mean "off". They are known, have no effect, and are not shown."""


@dataclass(frozen=True, slots=True)
class Unset:
    """One property that sets nothing here."""

    name: str
    because: str
    required: tuple[str, ...] = ()
    shown: str | None = None

    def holds(self, text: str) -> bool:
        """Return whether the value describes the actual behaviour. Raises ConfigError if it is refused."""
        if self.required and not any(_same(text, value) for value in self.required):
            good = " or ".join(value or "(empty)" for value in self.required)
            raise ConfigError(
                f"{self.name}={text} cannot be honoured: {self.because}; leave it out or set it to {good}"
            )
        return self.shown is not None and _same(text, self.shown)


def _same(text: str, value: str) -> bool:
    given = text.strip().lower()
    return given == value.lower() or (given in _NO_VALUE and value in _NO_VALUE)


BROKER_FEATURES: tuple[Feature, ...] = (
    Feature(
        because="the number of copies that a send waits for is what inSyncReplicas says, and is never lowered in silence",
        required={"enableAutoInSyncReplicas": "false", "duplicationEnable": "false"},
        tuning="minInSyncReplicas totalReplicas",
    ),
    Feature(
        because="copies are sent in a stream of our own, which a slave reads from the end of its log on",
        shown={
            "offsetCheckInSlave": "false",
            "haFlowControlEnable": "false",
            "asyncLearner": "false",
            "syncFromLastFile": "false",
            "syncMasterFlushOffsetWhenStartup": "false",
        },
        tuning="""
        accessMessageInMemoryHotRatio brokerIP2 consumerFallbehindThreshold haHousekeepingInterval
        haMaxTimeSlaveNotCatchup haSendHeartbeatInterval haTransferBatchSize maxHaTransferByteInSecond maxSlaveResendLength
        syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod
        """,
    ),
    Feature(
        because="a controller that elects masters is not supported; a Raft group elects its own (enableDLegerCommitLog)",
        required={
            "enableControllerMode": "false",
            "enableSlaveActingMaster": "false",
            "allAckInSyncStateSet": "false",
        },
        shown={
            "controllerAddr": "",
            "fetchControllerAddrByDnsLookup": "false",
            "enableRemoteEscape": "false",
            "skipPreOnline": "false",
        },
        tuning="""
        brokerElectionPriority brokerHeartbeatInterval brokerNotActiveTimeoutMillis checkSyncStateSetPeriod
        controllerHeartBeatTimeoutMills forwardTimeout sendHeartbeatTimeoutMillis storePathBrokerIdentity storePathEpochFile
        syncControllerMetadataPeriod
        """,
    ),
    Feature(
        because="a Raft group keeps the ordinary log and elects by its own rules",
        shown={"enableBatchPush": "false"},
        tuning="preferredLeaderId storePathDLedgerCommitLog",
    ),
    Feature(
        because="authentication and authorization are not implemented yet, and the broker would be open to everyone",
        required={"aclEnable": "false", "authenticationEnabled": "false", "authorizationEnabled": "false"},
        shown={"migrateAuthFromV1Enabled": "false"},
        tuning="""
        aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath authenticationMetadataProvider
        authenticationProvider authenticationStrategy authenticationWhitelist authorizationMetadataProvider
        authorizationProvider authorizationStrategy authorizationWhitelist initAuthenticationUser
        innerClientAuthenticationCredentials statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
        statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum userCacheExpiredSecond userCacheMaxNum
        userCacheRefreshSecond
        """,
    ),
    Feature(
        because="POP consumption is not supported",
        shown={
            "appendAckAsync": "false",
            "appendCkAsync": "false",
            "clearRetryTopicWhenDeleteTopic": "false",
            "defaultMessageRequestMode": "PULL",
            "defaultPopShareQueueNum": "-1",
            "enableNotifyAfterPopOrderLockRelease": "false",
            "enableNotifyBeforePopCalculateLag": "false",
            "enablePopBatchAck": "false",
            "enablePopBufferMerge": "false",
            "enablePopLog": "false",
            "enablePopMessageThreshold": "false",
            "enableRetryTopicV2": "false",
            "enableSkipLongAwaitingAck": "false",
            "initPopOffsetByCheckMsgInMem": "false",
            "popConsumerFSServiceInit": "false",
            "popConsumerKVServiceEnable": "false",
            "popConsumerKVServiceInit": "false",
            "popConsumerKVServiceLog": "false",
            "popFromRetryProbability": "0",
            "popResponseReturnActualRetryTopic": "false",
            "retrieveMessageFromPopRetryTopicV1": "false",
            "serverLoadBalancerEnable": "false",
            "skipWhenCKRePutReachMaxTimes": "false",
        },
        tuning="""
        loadBalancePollNameServerInterval maxPopPollingSize popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime
        popCkStayBufferTimeOut popInflightMessageThreshold popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds
        popPollingMapSize popPollingSize popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead reviveAckWaitMs
        reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime
        """,
    ),
    Feature(
        because="only the file store is read and written",
        required={"storeType": "default", "messageStorePlugIn": "", "readOnlyCommitLogStorePaths": ""},
        shown={
            "configManagerVersion": "v1",
            "enableRocksDBLog": "false",
            "realTimePersistRocksDBConfig": "false",
            "rocksdbCQDoubleWriteEnable": "false",
        },
        tuning="""
        bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin combineCQEnableCheckSelf
        combineCQMaxExtraSearchCommitLogFiles memTableFlushIntervalMs rocksdbCompressionType rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold statRocksDBCQIntervalSec
        """,
    ),
    Feature(
        because="light message queues and dispatch into several queues are not supported",
        required={"enableLmq": "false", "enableMultiDispatch": "false"},
        shown={"enableLmqStats": "false"},
        tuning="maxLmqConsumeQueueNum",
    ),
    Feature(
        because="extended queue files and their bit maps are not supported",
        required={"enableConsumeQueueExt": "false"},
        shown={"enableCalcFilterBitMap": "false"},
        tuning="""
        bitMapLengthConsumeQueueExt expectConsumerNumUseFilter mappedFileSizeConsumeQueueExt maxErrorRateOfBloomFilter
        """,
    ),
    Feature(
        because="compacted topics are not supported",
        shown={"enableCompaction": "false"},
        tuning="""
        compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal compactionThreadNum maxOffsetMapSize
        """,
    ),
    Feature(
        because="queues of batches are not supported",
        shown={"searchBcqByCacheEnable": "false"},
        tuning="mapperFileSizeBatchConsumeQueue",
    ),
    Feature(
        because="readers of cold data are not limited: they are served by worker threads",
        required={"disableConsumeIfConsumerReadSlowly": "false"},
        shown={
            "coldCtrStrategyEnable": "false",
            "coldDataFlowControlEnable": "false",
            "coldDataScanEnable": "false",
            "dataReadAheadEnable": "false",
            "usePIDColdCtrStrategy": "false",
        },
        tuning="cgColdReadThreshold globalColdReadThreshold timerColdDataCheckIntervalMs",
    ),
    Feature(
        because="name servers are configured in namesrvAddr",
        required={"fetchNamesrvAddrByAddressServer": "false", "fetchNameSrvAddrByDnsLookup": "false"},
        tuning="fetchNamesrvAddrInterval updateNameServerAddrPeriod",
    ),
    Feature(
        because="static subscriptions are not supported",
        required={"useStaticSubscription": "false"},
    ),
    Feature(
        because="pull consumers are always served",
        required={"rejectPullConsumerEnable": "false"},
        shown={"litePullMessageEnable": "true"},
        tuning="pullBatchMaxMessageCount",
    ),
    Feature(
        because="timer files have a slot for each second; deliveries are exact to the millisecond anyway",
        required={"timerPrecisionMs": "1000"},
    ),
    Feature(
        because="delays and timers are delivered in log order and repeated until they succeed",
        shown={
            "enableScheduleAsyncDeliver": "false",
            "timerEnableDisruptor": "false",
            "timerEnableRetryUntilSuccess": "true",
            "timerInterceptDelayLevel": "false",
            "timerSkipUnknownError": "false",
            "timerStopDequeue": "false",
            "timerStopEnqueue": "false",
            "timerWarmEnable": "false",
        },
        tuning="""
        delayOffsetUpdateVersionStep flushDelayOffsetInterval scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked timerCongestNumEachSlot timerFlushIntervalMs timerGetMessageThreadNum
        timerProgressLogIntervalMs timerPutMessageThreadNum timerRollWindowSlot
        """,
    ),
    Feature(
        because="metrics are not exported",
        shown={
            "enableConnectionMetrics": "false",
            "enableLagAndDlqMetrics": "false",
            "enableMessageStoreMetrics": "false",
            "enablePopMetrics": "false",
            "enableRemotingMetrics": "false",
            "enableRequestMetrics": "false",
            "enableStatsMetrics": "false",
            "enableTransactionMetrics": "false",
            "metricsExporterType": "DISABLE",
            "metricsGrpcExporterHeader": "",
            "metricsGrpcExporterTarget": "",
            "metricsInDelta": "false",
            "metricsLabel": "",
            "metricsPromExporterHost": "",
            "timerEnableCheckMetrics": "false",
        },
        tuning="""
        metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
        metricsOtelCardinalityLimit metricsPromExporterPort timerCheckMetricsWhen timerMetricSmallThreshold
        transactionMetricFlushInterval
        """,
    ),
    Feature(
        because="there are no accounts, and statistics of topics and groups are kept as long as these exist",
        shown={
            "accountStatsEnable": "false",
            "accountStatsPrintZeroValues": "false",
            "autoDeleteUnusedStats": "true",
            "diskFallRecorded": "false",
            "enableDetailStat": "true",
            "estimateAccumulation": "false",
            "enableScheduleMessageStats": "false",
            "maxStatsIdleTimeInMinutes": "-1",
        },
        tuning="commercialBaseCount commercialSizePerMsg sampleCountThreshold sampleSteps",
    ),
    Feature(
        because="one event loop serves all requests; there are no thread pools with request queues",
        shown={"brokerFastFailureEnable": "false", "asyncSendEnable": "true", "isolateLogEnable": "false"},
        tuning="""
        ackMessageThreadPoolNums ackThreadPoolQueueCapacity adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity
        batchDispatchRequestThreadPoolNums clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity
        consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity endTransactionPoolQueueCapacity
        endTransactionThreadPoolNums heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity litePullMessageThreadPoolNums
        litePullThreadPoolQueueCapacity loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity
        maxAsyncPutMessageRequests osPageCacheBusyTimeOutMills processReplyMessageThreadPoolNums pullMessageThreadPoolNums
        pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putMessageTimeout putThreadPoolQueueCapacity
        queryMessageThreadPoolNums queryThreadPoolQueueCapacity replyThreadPoolQueueCapacity sendMessageThreadPoolNums
        sendThreadPoolQueueCapacity waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue
        waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
        """,
    ),
    Feature(
        because="sockets are asyncio's, not Netty's; the system chooses their buffer sizes",
        shown={
            "clientCloseSocketIfTimeout": "false",
            "clientPooledByteBufAllocatorEnable": "false",
            "clientSocketRcvBufSize": "0",
            "clientSocketSndBufSize": "0",
            "disableCallbackExecutor": "true",
            "disableNettyWorkerGroup": "true",
            "enableFastChannelEventProcess": "false",
            "enableNetWorkFlowControl": "false",
            "enableReconnectForGoAway": "false",
            "enableShutdownGracefully": "false",
            "isScanAvailableNameSrv": "false",
            "printChannelGroups": "false",
            "scanAvailableNameSrv": "false",
            "serverNettyWorkerGroupEnable": "false",
            "serverPooledByteBufAllocatorEnable": "false",
            "serverSocketRcvBufSize": "0",
            "serverSocketSndBufSize": "0",
            "socksProxyConfig": "{}",
            "useEpollNativeSelector": "false",
            "writeBufferHighWaterMark": "0",
            "writeBufferLowWaterMark": "0",
        },
        tuning="""
        channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds
        clientOnewaySemaphoreValue clientWorkerThreads connectTimeoutMillis maxReconnectIntervalTimeSeconds
        printChannelGroupsMinNum serverAsyncSemaphoreValue serverCallbackExecutorThreads serverOnewaySemaphoreValue
        serverSelectorThreads serverWorkerThreads shutdownWaitTimeSeconds
        """,
    ),
    Feature(
        because="the log is written with pwrite, once per turn of the event loop, and memory-mapped only for reading",
        shown={
            "debugLockEnable": "false",
            "fastFailIfNoBufferInStorePool": "false",
            "flushCommitLogTimed": "true",
            "mappedFileSwapEnable": "false",
            "putConsumeQueueDataByFileChannel": "true",
            "transferMsgByHeap": "true",
            "transientStorePoolEnable": "false",
            "useABSLock": "false",
            "useReentrantLockWhenPutMessage": "false",
            "wakeCommitWhenPutMessage": "false",
            "wakeFlushWhenPutMessage": "false",
            "warmMapedFileEnable": "false",
        },
        tuning="""
        cleanSwapedMapInterval commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
        commitLogForceSwapMapInterval commitLogSwapMapInterval commitLogSwapMapReserveFileNum
        destroyMapedFileIntervalForcibly enableRunningFlagsInFlush flushCommitLogLeastPages flushCommitLogThoroughInterval
        flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval flushLeastPagesWhenWarmMapedFile
        logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum redeleteHangedFileInterval
        spinLockCollisionRetreatOptimalDegree topicQueueLockNum transientStorePoolSize writeWithoutMmap
        """,
    ),
    Feature(
        because="queues and index are built from the log by one thread, at run time and when a store is opened",
        shown={
            "dispatchFromSenderThread": "false",
            "enableAsyncReput": "false",
            "enableBuildConsumeQueueConcurrently": "false",
            "forceVerifyPropCRC": "false",
            "messageIndexSafe": "false",
            "readUnCommitted": "false",
            "recheckReputOffsetFromCq": "false",
            "recoverConcurrently": "false",
        },
        tuning="""
        correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval deleteCommitLogFilesInterval
        deleteConsumeQueueFilesInterval dispatchCqCacheNum dispatchCqThreads enableAcceleratedRecovery
        enableLogConsumeQueueRepeatedlyBuildWhenRecover logicalDiskSpaceCleanForciblyThreshold maxBatchDeleteFilesNum
        maxChecksumRange maxConsumeQueueScan maxFilterMessageSize maxMsgsNumBatch maxRecoveryCommitlogFiles
        maxTransferBytesOnMessageInDisk maxTransferCountOnMessageInDisk putMsgIndexHightWater recoverThreadPoolNums
        replicasPerDiskPartition travelCqFileNumWhenGetMessage
        """,
    ),
    Feature(
        because="all topics are registered in one request every period, and a changed topic individually at once",
        shown={
            "compatibleWithOldNameSrv": "true",
            "compressedRegister": "false",
            "enableSingleTopicRegister": "true",
            "enableSplitMetadata": "false",
            "enableSplitRegistration": "false",
            "forceRegister": "true",
        },
        tuning="cleanOfflineBrokerInterval splitMetadataSize splitRegistrationSize",
    ),
    Feature(
        because="a broker always runs in its own process",
        shown={"inBrokerContainer": "false", "isBrokerContainer": "false", "isInBrokerContainer": "false"},
    ),
    Feature(
        because="broadcasting consumers store their own offsets",
        shown={"enableBroadcastOffsetStore": "false"},
        tuning="broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond",
    ),
    Feature(
        because="this broker always behaves this way",
        shown={
            "allowRecallWhenBrokerNotWriteable": "true",
            "autoMessageVersionOnTopicLen": "true",
            "brokerTopicEnable": "true",
            "clusterTopicEnable": "true",
            "disappearTimeAfterStart": "-1",
            "enableCleanExpiredOffset": "false",
            "enableCreateSysGroup": "true",
            "enableMixedMessageType": "false",
            "enableRegisterProducer": "true",
            "highSpeedMode": "false",
            "maxTopicLength": "127",
            "realTimeNotifyConsumerChange": "true",
            "startAcceptSendRequestTimeStamp": "0",
        },
        tuning="""
        brokerConfigPath clusterName configBlackList configName consumerOffsetUpdateVersionStep
        flushConsumerOffsetHistoryInterval rocketmqHome transactionOpBatchInterval transactionOpMsgMaxSize
        """,
    ),
)

NAMESERVER_FEATURES: tuple[Feature, ...] = (
    Feature(
        because="a controller that elects masters is not supported; a Raft group elects its own (enableDLegerCommitLog)",
        required={"enableControllerInNamesrv": "false"},
        tuning="""
        controllerDLegerGroup controllerDLegerPeers controllerDLegerSelfId controllerRequestThreadPoolQueueCapacity
        controllerStorePath controllerThreadPoolNums controllerType electMasterMaxRetryCount enableElectUncleanMaster
        jraftConfig mappedFileSize notifyBrokerRoleChanged processReadEvent scanInactiveMasterInterval
        """,
    ),
    Feature(
        because="sockets are asyncio's, not Netty's; the system chooses their buffer sizes",
        shown={
            "enableShutdownGracefully": "false",
            "serverNettyWorkerGroupEnable": "false",
            "serverPooledByteBufAllocatorEnable": "false",
            "serverSocketRcvBufSize": "0",
            "serverSocketSndBufSize": "0",
            "useEpollNativeSelector": "false",
            "writeBufferHighWaterMark": "0",
            "writeBufferLowWaterMark": "0",
        },
        tuning="""
        clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity defaultThreadPoolNums
        defaultThreadPoolQueueCapacity serverAsyncSemaphoreValue serverCallbackExecutorThreads serverOnewaySemaphoreValue
        serverSelectorThreads serverWorkerThreads shutdownWaitTimeSeconds unRegisterBrokerQueueCapacity
        """,
    ),
    Feature(
        because="a name server answers as soon as it has started",
        shown={"enableTopicList": "true", "needWaitForService": "false"},
        tuning="configBlackList configStorePath rocketmqHome waitSecondsForService",
    ),
)


def unset(features: Iterable[Feature]) -> dict[str, Unset]:
    """Return every property of the features, by name."""
    found: dict[str, Unset] = {}
    for feature in features:
        for name in dict.fromkeys((*feature.required, *feature.shown, *feature.tuning.split())):
            assert name not in found, f"{name} belongs to two features"
            required = tuple(feature.required[name].split("|")) if name in feature.required else ()
            shown = feature.shown.get(name, required[0] if required else None)
            found[name] = Unset(name, feature.because, required, shown)
    return found


BROKER_UNSET: dict[str, Unset] = unset(BROKER_FEATURES)
NAMESERVER_UNSET: dict[str, Unset] = unset(NAMESERVER_FEATURES)
