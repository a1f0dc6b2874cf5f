import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The part of the probe that deals with delivery: listeners that fail, transactions, request and reply, traces. */
class Delivery {
    private final String nameserver;
    private final String name;
    private final Map<String, Listening> listening = new HashMap<>();
    private final Map<String, Transactions> transactions = new HashMap<>();
    private final Map<String, DefaultMQProducer> requesters = new HashMap<>();

    Delivery(String nameserver, String name) {
        this.nameserver = nameserver;
        this.name = name;
    }

    Object handle(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "listen": return listen(request);
            case "heard": return listening.get(request.getString("id")).gathered.take(request);
            case "hush": listening.remove(request.getString("id")).consumer.shutdown(); return null;
            case "tx_start": return start(request);
            case "tx_send": return send(request);
            case "tx_checked": return transactions.get(request.getString("group")).checked.take(request);
            case "tx_stop": transactions.remove(request.getString("group")).producer.shutdown(); return null;
            case "request": return request(request);
            case "traced_send": return tracedSend(request);
            case "recall": return recall(request);
            case "lite_from": return liteFrom(request);
            default: throw new IllegalArgumentException("unknown: " + request);
        }
    }

    /** What has come, until somebody asks. */
    private static class Gathered {
        private final JSONArray all = new JSONArray();

        synchronized void add(Object one) {
            all.add(one);
            notifyAll();
        }

        /** Waits until `count` are there (or the time is over), and returns all that came since the last call. */
        synchronized JSONArray take(JSONObject request) throws InterruptedException {
            long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(request.getLongValue("millis"));
            while (all.size() < request.getIntValue("count")) {
                long left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
                if (left <= 0) {
                    break;
                }
                wait(left);
            }
            JSONArray taken = (JSONArray) all.clone();
            all.clear();
            return taken;
        }
    }

    // ---------------------------------------------------------------- push consumers

    private static class Listening {
        DefaultMQPushConsumer consumer;
        final Gathered gathered = new Gathered();
        final Map<String, Integer> failures = new ConcurrentHashMap<>();

        /** Notes the message; false if the listener is to fail this time. */
        boolean take(MessageExt message) {
            JSONObject seen = Probe.message(message);
            seen.put("at", System.currentTimeMillis());
            gathered.add(seen);
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            Integer left = failures.get(body);
            if (left != null && left != 0) {
                failures.put(body, left - 1);
                return false;
            }
            return true;
        }
    }

    /**
     * A push consumer. "fail": how often the listener fails for a body (-1: always); "level": the delay level it asks for
     * then; "reply": it answers requests with their body in capitals.
     */
    private Object listen(JSONObject request) throws Exception {
        Listening started = new Listening();
        String group = request.getString("group");
        String id = request.getString("id");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, request.getBooleanValue("trace"), null);
        consumer.setNamesrvAddr(nameserver);
        consumer.setInstanceName(name + "-" + id);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.setHeartbeatBrokerInterval(3000);
        consumer.setAwaitTerminationMillisWhenShutdown(5000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setSuspendCurrentQueueTimeMillis(200);
        if (request.containsKey("maxReconsume")) {
            consumer.setMaxReconsumeTimes(request.getIntValue("maxReconsume"));
        }
        if (request.getBooleanValue("broadcast")) {
            broadcast(consumer);
        }
        if (request.containsKey("sql")) {
            consumer.subscribe(request.getString("topic"), MessageSelector.bySql(request.getString("sql")));
        } else {
            consumer.subscribe(request.getString("topic"), Probe.expression(request));
        }
        if (request.containsKey("fail")) {
            for (Map.Entry<String, Object> each : request.getJSONObject("fail").entrySet()) {
                started.failures.put(each.getKey(), ((Number) each.getValue()).intValue());
            }
        }
        boolean replies = request.getBooleanValue("reply");
        int level = request.getIntValue("level");
        if (request.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) ->
                started.take(batch.get(0)) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                context.setDelayLevelWhenNextConsume(level);
                boolean done = started.take(batch.get(0));
                if (replies && MessageUtil.getReplyToClient(batch.get(0)) != null) {
                    reply(consumer, batch.get(0));
                }
                return done ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        started.consumer = consumer;
        consumer.start();
        listening.put(id, started);
        return consumer.buildMQClientId();
    }

    /** The enumeration moved to another package in 5.x. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
        Class models = ((Enum) consumer.getMessageModel()).getDeclaringClass();
        DefaultMQPushConsumer.class.getMethod("setMessageModel", models).invoke(consumer, Enum.valueOf(models, "BROADCASTING"));
    }

    // ---------------------------------------------------------------- request and reply

    private void reply(DefaultMQPushConsumer consumer, MessageExt asked) {
        try {
            byte[] body = new String(asked.getBody(), StandardCharsets.UTF_8).toUpperCase().getBytes(StandardCharsets.UTF_8);
            requester("REPLY_" + name).send(MessageUtil.createReplyMessage(asked, body), 3000);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private synchronized DefaultMQProducer requester(String group) throws Exception {
        DefaultMQProducer producer = requesters.get(group);
        if (producer == null) {
            producer = new DefaultMQProducer(group);
            producer.setNamesrvAddr(nameserver);
            producer.setInstanceName(name + "-" + group);
            producer.start();
            requesters.put(group, producer);
        }
        return producer;
    }

    private Object request(JSONObject request) throws Exception {
        Message asked = Probe.toMessage(request.getString("topic"), request.getJSONObject("message"));
        // With a callback: the blocking form of 5.3.3 gives up as soon as the broker has taken the request. The callback
        // is called with null then, and again with the reply.
        CompletableFuture<Message> replied = new CompletableFuture<>();
        requester("REQUEST_" + name).request(asked, new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                if (message != null) {
                    replied.complete(message);
                }
            }

            @Override
            public void onException(Throwable error) {
                replied.completeExceptionally(error);
            }
        }, request.getLongValue("timeout"));
        Message answer = replied.get(request.getLongValue("timeout"), TimeUnit.MILLISECONDS);
        JSONObject told = new JSONObject();
        told.put("body", new String(answer.getBody(), StandardCharsets.UTF_8));
        told.put("topic", answer.getTopic());
        told.put("properties", new HashMap<String, Object>(answer.getProperties()));
        return told;
    }

    // ---------------------------------------------------------------- transactions

    private static class Transactions {
        TransactionMQProducer producer;
        final Gathered checked = new Gathered();
        final Map<String, LinkedList<String>> verdicts = new ConcurrentHashMap<>(); // what checks are answered, by body
    }

    private Object start(JSONObject request) throws Exception {
        Transactions started = new Transactions();
        TransactionMQProducer producer = new TransactionMQProducer(request.getString("group"));
        producer.setNamesrvAddr(nameserver);
        producer.setInstanceName(name + "-" + request.getString("group"));
        producer.setHeartbeatBrokerInterval(3000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object local) {
                return LocalTransactionState.valueOf((String) local);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                JSONObject seen = Probe.message(message);
                seen.put("transactionId", message.getTransactionId());
                started.checked.add(seen);
                LinkedList<String> left = started.verdicts.get(new String(message.getBody(), StandardCharsets.UTF_8));
                return LocalTransactionState.valueOf(left == null || left.isEmpty() ? "UNKNOW" : left.removeFirst());
            }
        });
        JSONObject verdicts = request.getJSONObject("verdicts");
        if (verdicts != null) {
            for (String body : verdicts.keySet()) {
                started.verdicts.put(body, new LinkedList<>(verdicts.getJSONArray(body).toJavaList(String.class)));
            }
        }
        started.producer = producer;
        producer.start();
        transactions.put(request.getString("group"), started);
        return producer.buildMQClientId();
    }

    /** Sends every message; "local" says how its local transaction ends. */
    private Object send(JSONObject request) throws Exception {
        JSONArray results = new JSONArray();
        for (Object each : request.getJSONArray("messages")) {
            JSONObject described = (JSONObject) each;
            Message message = Probe.toMessage(request.getString("topic"), described);
            TransactionSendResult sent = transactions.get(request.getString("group")).producer
                .sendMessageInTransaction(message, described.getString("local"));
            JSONObject result = Probe.result(sent);
            result.put("state", sent.getLocalTransactionState().name());
            result.put("transactionId", sent.getTransactionId());
            results.add(result);
        }
        return results;
    }

    // ---------------------------------------------------------------- traces, recall, lite pull from an offset

    private Object tracedSend(JSONObject request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(request.getString("group"), true, null);
        producer.setNamesrvAddr(nameserver);
        producer.setInstanceName(name + "-" + request.getString("group"));
        producer.start();
        JSONArray results = new JSONArray();
        for (Object each : request.getJSONArray("messages")) {
            results.add(Probe.result(producer.send(Probe.toMessage(request.getString("topic"), (JSONObject) each))));
        }
        producer.shutdown(); // what is traced is sent by then
        return results;
    }

    /** Only the newer of the two clients can. */
    private Object recall(JSONObject request) throws Exception {
        DefaultMQProducer producer = requester("RECALL_" + name);
        try {
            return DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
                .invoke(producer, request.getString("topic"), request.getString("handle"));
        } catch (java.lang.reflect.InvocationTargetException error) {
            throw (Exception) error.getCause();
        }
    }

    /** A lite pull consumer that is given one queue and begins where it is told. */
    private Object liteFrom(JSONObject request) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.getString("group"));
        consumer.setNamesrvAddr(nameserver);
        consumer.setInstanceName(name + "-" + request.getString("group"));
        consumer.setAutoCommit(false);
        consumer.start();
        try {
            JSONArray all = new JSONArray();
            for (MessageQueue queue : consumer.fetchMessageQueues(request.getString("topic"))) {
                if (queue.getQueueId() == request.getIntValue("queueId")) {
                    List<MessageQueue> mine = new LinkedList<>();
                    mine.add(queue);
                    consumer.assign(mine);
                    consumer.seek(queue, request.getLongValue("offset"));
                }
            }
            long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(request.getLongValue("millis"));
            while (all.size() < request.getIntValue("count") && System.nanoTime() < deadline) {
                for (MessageExt each : consumer.poll(500)) {
                    all.add(Probe.message(each));
                }
            }
            return all;
        } finally {
            consumer.shutdown();
        }
    }
}
