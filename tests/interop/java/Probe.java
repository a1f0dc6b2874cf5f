import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * An application of the official Java client that is driven through its standard input: one JSON object per line in,
 * one out. {"do": "send", ...} is answered by {"ok": ...} or {"error": text, "code": number}.
 *
 * Compiled against rocketmq-client 4.9.8 and against 5.3.3, so it keeps to what both offer.
 */
public class Probe {
    private final String nameserver;
    private final String name;
    private final DefaultMQProducer producer;
    private final DefaultMQPullConsumer puller;
    private final Map<String, Pushed> pushed = new HashMap<>();
    private final Delivery delivery;

    Probe(String nameserver, String name) throws Exception {
        this.nameserver = nameserver;
        this.name = name;
        delivery = new Delivery(nameserver, name);
        producer = new DefaultMQProducer("P_" + name);
        producer.setNamesrvAddr(nameserver);
        producer.setInstanceName(name + "-p");
        producer.start();
        puller = new DefaultMQPullConsumer("PULL_" + name);
        puller.setNamesrvAddr(nameserver);
        puller.setInstanceName(name + "-c");
        puller.start();
    }

    public static void main(String[] arguments) throws Exception {
        // The client's libraries print on System.out at times; the answers keep that stream for themselves.
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        System.setOut(System.err);
        Probe probe = new Probe(arguments[0], arguments[1]);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject answer = new JSONObject();
            try {
                answer.put("ok", probe.handle(JSON.parseObject(line)));
            } catch (Throwable error) {
                answer.put("error", withCauses(error));
                answer.put("code", codeOf(error));
            }
            answers.println(answer.toJSONString());
        }
        Runtime.getRuntime().halt(0); // the test is over; an orderly stop would take seconds
    }

    private static String withCauses(Throwable error) {
        StringBuilder text = new StringBuilder(error.toString());
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
            text.append("; because of ").append(cause);
        }
        return text.toString();
    }

    private static int codeOf(Throwable error) {
        if (error instanceof MQBrokerException) {
            return ((MQBrokerException) error).getResponseCode();
        }
        return error instanceof MQClientException ? ((MQClientException) error).getResponseCode() : -1;
    }

    private Object handle(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "hello": return hello();
            case "send": return send(request);
            case "send_to": return sendTo(request);
            case "queues": return queues(request.getString("topic"), request.getBooleanValue("publish"));
            case "pull": return pull(request);
            case "pull_blocking": return pullBlocking(request);
            case "offsets": return offsets(request);
            case "search": return search(request);
            case "query": return query(request);
            case "view": return message(producer.viewMessage(request.getString("topic"), request.getString("id")));
            case "commit": return commit(request);
            case "committed": return committed(request);
            case "push_start": return pushStart(request);
            case "push_got": return pushGot(request);
            case "push_stop": return pushStop(request);
            case "lite": return lite(request);
            default: return delivery.handle(request);
        }
    }

    private JSONObject hello() throws Exception {
        JSONObject answer = new JSONObject();
        RemotingCommand command = RemotingCommand.createRequestCommand(10, null);
        answer.put("version", command.getVersion()); // -1 until the client has set it, so ask after the producer started
        answer.put("serialize", command.getSerializeTypeCurrentRPC().name());
        answer.put("clientId", producer.buildMQClientId());
        return answer;
    }

    // ---------------------------------------------------------------- send

    /** Sends every message of the list, in the given mode, and returns one result per request. */
    private Object send(JSONObject request) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (Object each : request.getJSONArray("messages")) {
            messages.add(toMessage(request.getString("topic"), (JSONObject) each));
        }
        JSONArray results = new JSONArray();
        switch (request.getString("mode")) {
            case "sync":
                for (Message message : messages) {
                    results.add(result(producer.send(message)));
                }
                return results;
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                return results;
            case "batch":
                results.add(result(producer.send(messages)));
                return results;
            case "async":
                return sendAsync(messages);
            default:
                throw new IllegalArgumentException("unknown mode: " + request);
        }
    }

    private JSONArray sendAsync(List<Message> messages) throws Exception {
        JSONObject[] results = new JSONObject[messages.size()];
        Throwable[] failure = new Throwable[1];
        CountDownLatch left = new CountDownLatch(messages.size());
        for (int index = 0; index < messages.size(); index++) {
            int slot = index;
            producer.send(messages.get(index), new SendCallback() {
                @Override
                public void onSuccess(SendResult sent) {
                    results[slot] = result(sent);
                    left.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    failure[0] = error;
                    left.countDown();
                }
            });
        }
        if (!left.await(20, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.getCount() + " asynchronous sends got no answer in 20 s");
        }
        if (failure[0] != null) {
            throw new IllegalStateException("an asynchronous send failed", failure[0]);
        }
        JSONArray list = new JSONArray();
        for (JSONObject each : results) {
            list.add(each);
        }
        return list;
    }

    /** To one queue, chosen by the caller. */
    private Object sendTo(JSONObject request) throws Exception {
        MessageQueue queue = queue(request);
        JSONArray results = new JSONArray();
        for (Object each : request.getJSONArray("messages")) {
            results.add(result(producer.send(toMessage(request.getString("topic"), (JSONObject) each), queue)));
        }
        return results;
    }

    static Message toMessage(String topic, JSONObject described) {
        Message message = new Message(topic, bytes(described));
        if (described.containsKey("tags")) {
            message.setTags(described.getString("tags"));
        }
        if (described.containsKey("keys")) {
            message.setKeys(described.getString("keys"));
        }
        if (described.containsKey("flag")) {
            message.setFlag(described.getIntValue("flag"));
        }
        if (described.containsKey("level")) {
            message.setDelayTimeLevel(described.getIntValue("level"));
        }
        if (described.containsKey("system")) {
            for (Map.Entry<String, Object> each : described.getJSONObject("system").entrySet()) {
                MessageAccessor.putProperty(message, each.getKey(), each.getValue().toString());
            }
        }
        if (described.containsKey("properties")) {
            for (Map.Entry<String, Object> each : described.getJSONObject("properties").entrySet()) {
                message.putUserProperty(each.getKey(), each.getValue().toString());
            }
        }
        return message;
    }

    /** The body is text, or `size` bytes of a pattern (large bodies are compressed by the client). */
    private static byte[] bytes(JSONObject described) {
        if (!described.containsKey("size")) {
            return described.getString("body").getBytes(StandardCharsets.UTF_8);
        }
        byte[] body = new byte[described.getIntValue("size")];
        for (int index = 0; index < body.length; index++) {
            body[index] = (byte) ('a' + index % 23);
        }
        return body;
    }

    static JSONObject result(SendResult sent) {
        JSONObject answer = new JSONObject();
        answer.put("status", sent.getSendStatus().name());
        answer.put("msgId", sent.getMsgId());
        answer.put("offsetMsgId", sent.getOffsetMsgId());
        answer.put("queueOffset", sent.getQueueOffset());
        answer.put("queueId", sent.getMessageQueue().getQueueId());
        answer.put("brokerName", sent.getMessageQueue().getBrokerName());
        answer.put("regionId", sent.getRegionId());
        answer.put("traceOn", sent.isTraceOn());
        try {
            answer.put("recallHandle", SendResult.class.getMethod("getRecallHandle").invoke(sent));
        } catch (ReflectiveOperationException error) {
            answer.put("recallHandle", null); // 4.9.8 does not know of it
        }
        return answer;
    }

    // ---------------------------------------------------------------- queues, pull, offsets

    private TreeSet<MessageQueue> known(String topic) throws Exception {
        return new TreeSet<>(puller.fetchSubscribeMessageQueues(topic));
    }

    private Object queues(String topic, boolean publish) throws Exception {
        Collection<MessageQueue> found = publish ? producer.fetchPublishMessageQueues(topic) : known(topic);
        JSONArray list = new JSONArray();
        for (MessageQueue queue : new TreeSet<>(found)) {
            list.add(queue.getBrokerName() + ":" + queue.getQueueId());
        }
        return list;
    }

    private MessageQueue queue(JSONObject request) throws Exception {
        for (MessageQueue queue : known(request.getString("topic"))) {
            if (queue.getQueueId() == request.getIntValue("queueId")) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no such queue: " + request);
    }

    static String expression(JSONObject request) {
        return request.containsKey("expression") ? request.getString("expression") : "*";
    }

    /** One pull of one queue as it is answered, or (without queueId) every message of every queue. */
    private Object pull(JSONObject request) throws Exception {
        int count = request.containsKey("count") ? request.getIntValue("count") : 32;
        if (request.containsKey("queueId")) {
            return pulled(pullOnce(queue(request), request, request.getLongValue("offset"), count));
        }
        JSONArray all = new JSONArray();
        for (MessageQueue queue : known(request.getString("topic"))) {
            long offset = puller.minOffset(queue);
            long end = puller.maxOffset(queue);
            while (offset < end) {
                PullResult result = pullOnce(queue, request, offset, count);
                if (result.getMsgFoundList() != null) {
                    for (MessageExt each : result.getMsgFoundList()) {
                        all.add(message(each));
                    }
                }
                if (result.getNextBeginOffset() <= offset) {
                    throw new IllegalStateException("stuck at " + offset + " of " + queue + ": " + result);
                }
                offset = result.getNextBeginOffset();
            }
        }
        return all;
    }

    private PullResult pullOnce(MessageQueue queue, JSONObject request, long offset, int count) throws Exception {
        if (request.containsKey("sql")) {
            return puller.pull(queue, MessageSelector.bySql(request.getString("sql")), offset, count);
        }
        return puller.pull(queue, expression(request), offset, count);
    }

    private Object pullBlocking(JSONObject request) throws Exception {
        return pulled(puller.pullBlockIfNotFound(queue(request), expression(request), request.getLongValue("offset"), 32));
    }

    private static JSONObject pulled(PullResult result) {
        JSONObject answer = new JSONObject();
        answer.put("status", result.getPullStatus().name());
        answer.put("next", result.getNextBeginOffset());
        answer.put("min", result.getMinOffset());
        answer.put("max", result.getMaxOffset());
        JSONArray list = new JSONArray();
        if (result.getMsgFoundList() != null) {
            for (MessageExt each : result.getMsgFoundList()) {
                list.add(message(each));
            }
        }
        answer.put("messages", list);
        return answer;
    }

    private Object offsets(JSONObject request) throws Exception {
        JSONObject answer = new JSONObject();
        for (MessageQueue queue : known(request.getString("topic"))) {
            JSONObject each = new JSONObject();
            each.put("min", producer.minOffset(queue));
            each.put("max", producer.maxOffset(queue));
            each.put("earliest", producer.earliestMsgStoreTime(queue));
            answer.put(String.valueOf(queue.getQueueId()), each);
        }
        return answer;
    }

    private Object search(JSONObject request) throws Exception {
        return producer.searchOffset(queue(request), request.getLongValue("time"));
    }

    private Object commit(JSONObject request) throws Exception {
        puller.updateConsumeOffset(queue(request), request.getLongValue("offset"));
        puller.getOffsetStore().persist(queue(request));
        return null;
    }

    private Object committed(JSONObject request) throws Exception {
        return puller.fetchConsumeOffset(queue(request), true);
    }

    // ---------------------------------------------------------------- query

    private Object query(JSONObject request) throws Exception {
        long begin = request.containsKey("begin") ? request.getLongValue("begin") : 0;
        long end = request.containsKey("end") ? request.getLongValue("end") : Long.MAX_VALUE;
        int count = request.containsKey("count") ? request.getIntValue("count") : 32;
        JSONArray list = new JSONArray();
        for (MessageExt each : producer.queryMessage(
                request.getString("topic"), request.getString("key"), count, begin, end).getMessageList()) {
            list.add(message(each));
        }
        return list;
    }

    static JSONObject message(MessageExt message) {
        JSONObject answer = new JSONObject();
        byte[] body = message.getBody();
        answer.put("topic", message.getTopic());
        answer.put("brokerName", message.getBrokerName());
        answer.put("queueId", message.getQueueId());
        answer.put("queueOffset", message.getQueueOffset());
        answer.put("commitLogOffset", message.getCommitLogOffset());
        answer.put("storeSize", message.getStoreSize());
        answer.put("msgId", message.getMsgId());
        answer.put("tags", message.getTags());
        answer.put("keys", message.getKeys());
        answer.put("properties", new HashMap<String, Object>(message.getProperties()));
        answer.put("bornTimestamp", message.getBornTimestamp());
        answer.put("storeTimestamp", message.getStoreTimestamp());
        answer.put("bornHost", message.getBornHostString());
        answer.put("storeHost", message.getStoreHost().toString().replaceFirst("^.*/", ""));
        answer.put("reconsumeTimes", message.getReconsumeTimes());
        answer.put("sysFlag", message.getSysFlag());
        answer.put("flag", message.getFlag());
        answer.put("bodyCrc", message.getBodyCRC());
        answer.put("size", body == null ? -1 : body.length);
        if (body != null && body.length <= 1024) {
            answer.put("body", new String(body, StandardCharsets.UTF_8));
        } else if (body != null) {
            JSONObject pattern = new JSONObject();
            pattern.put("size", body.length);
            answer.put("patternIntact", java.util.Arrays.equals(body, bytes(pattern)));
        }
        return answer;
    }

    // ---------------------------------------------------------------- push

    /** A running push consumer and what its listener was given. */
    private static class Pushed {
        DefaultMQPushConsumer consumer;
        final JSONArray messages = new JSONArray();

        synchronized void add(List<MessageExt> batch) {
            for (MessageExt each : batch) {
                messages.add(message(each));
            }
            notifyAll();
        }

        synchronized JSONArray take(int count, long millis) throws InterruptedException {
            long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
            while (messages.size() < count) {
                long left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
                if (left <= 0) {
                    break;
                }
                wait(left);
            }
            JSONArray taken = (JSONArray) messages.clone();
            messages.clear();
            return taken;
        }
    }

    private Object pushStart(JSONObject request) throws Exception {
        Pushed started = new Pushed();
        String group = request.getString("group");
        String id = request.containsKey("id") ? request.getString("id") : group;
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setInstanceName(name + "-" + id);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setPersistConsumerOffsetInterval(500);
        // When queues are given out the client counts its subscription up and sends a heartbeat, unless another one is
        // on its way; then its pulls are refused until the next, which by default is half a minute later.
        consumer.setHeartbeatBrokerInterval(3000);
        // What the listener was given when it is told to stop counts as consumed: it may finish.
        consumer.setAwaitTerminationMillisWhenShutdown(5000);
        boolean last = "last".equals(request.getString("from"));
        consumer.setConsumeFromWhere(
            last ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(request.getString("topic"), expression(request));
        if (request.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                started.add(batch);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                started.add(batch);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        started.consumer = consumer;
        consumer.start();
        pushed.put(id, started);
        return consumer.buildMQClientId();
    }

    /** Waits until `count` messages came (or the time is over), and returns all that came since the last call. */
    private Object pushGot(JSONObject request) throws Exception {
        return pushed.get(request.getString("id")).take(request.getIntValue("count"), request.getLongValue("millis"));
    }

    private Object pushStop(JSONObject request) {
        Pushed stopped = pushed.remove(request.getString("id"));
        stopped.consumer.shutdown(); // persists the offsets
        return null;
    }

    // ---------------------------------------------------------------- lite pull

    private Object lite(JSONObject request) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.getString("group"));
        consumer.setNamesrvAddr(nameserver);
        consumer.setInstanceName(name + "-lite-" + request.getString("group"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        if (request.containsKey("sql")) {
            consumer.subscribe(request.getString("topic"), MessageSelector.bySql(request.getString("sql")));
        } else {
            consumer.subscribe(request.getString("topic"), expression(request));
        }
        consumer.start();
        JSONArray all = new JSONArray();
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(request.getLongValue("millis"));
        try {
            while (all.size() < request.getIntValue("count") && System.nanoTime() < deadline) {
                for (MessageExt each : consumer.poll(500)) {
                    all.add(message(each));
                }
            }
            consumer.commitSync();
        } finally {
            consumer.shutdown();
        }
        return all;
    }
}
