import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** One official client that sends, or reads a backlog: `java Load WAY NAMESERVER TOPIC COUNT`; prints what benchmarks.clients.meter does. */
public final class Load {
    private static final int INFLIGHT = 10_000;
    private static final int THREADS = 20;

    private static int count;
    private static final AtomicInteger seen = new AtomicInteger();
    private static final AtomicLong bytes = new AtomicLong();
    private static final CountDownLatch done = new CountDownLatch(1);
    private static volatile long beganWall, beganCpu, endedWall, endedCpu;

    public static void main(String[] args) throws Exception {
        count = Integer.parseInt(args[3]);
        if (args[0].endsWith("send"))
            send(args[1], args[2]);
        else
            consume(args[1], args[2]);
        double measured = count - count / 10;
        System.out.printf("{\"messages\": %d, \"body_bytes\": %d, \"cpu_us\": %.4f, \"per_second\": %.1f}%n", seen.get(), bytes.get(),
                (endedCpu - beganCpu) / 1e3 / measured, measured * 1e9 / (endedWall - beganWall));
        System.exit(0);
    }

    private static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean) java.lang.management.ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }

    private static void see(int size) {
        int now = seen.incrementAndGet();
        bytes.addAndGet(size);
        if (now == count / 10) {
            beganWall = System.nanoTime();
            beganCpu = cpu();
        }
        if (now == count) {
            endedWall = System.nanoTime();
            endedCpu = cpu();
            done.countDown();
        }
    }

    private static void send(String nameserver, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-java");
        producer.setNamesrvAddr(nameserver);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        Semaphore room = new Semaphore(INFLIGHT);
        byte[] body = new byte[100];
        SendCallback told = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                room.release();
                see(0);
            }

            @Override
            public void onException(Throwable error) {
                error.printStackTrace();
                System.exit(1);
            }
        };
        for (int n = 0; n < count; n++) {
            room.acquire();
            producer.send(new Message(topic, body), told);
        }
        done.await();
    }

    private static void consume(String nameserver, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-" + UUID.randomUUID().toString().substring(0, 12));
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(THREADS);
        consumer.setConsumeThreadMax(THREADS);
        consumer.setPullBatchSize(512);
        consumer.setPullThresholdForQueue(4096);
        consumer.setConsumeConcurrentlyMaxSpan(8192);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> see(message.getBody().length));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        done.await();
    }
}
