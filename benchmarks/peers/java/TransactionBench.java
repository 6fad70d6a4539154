import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Transactions of the Java client, one after the other.
 *
 * <p>Arguments: URL of the broker, bytes of a message. Reads lines "WORK NUMBER", of which WORK is empty, pair or
 * batch and NUMBER counts transactions, and answers each with seconds.
 */
public final class TransactionBench {
    private static final int BATCH = 100;

    private final PulsarClient client;
    private final Producer<byte[]> input;
    private final Producer<byte[]> output;
    private final Producer<byte[]> batched;
    private final Consumer<byte[]> consumer;
    private final byte[] payload;

    private TransactionBench(String url, int size) throws Exception {
        client = PulsarClient.builder().serviceUrl(url).enableTransaction(true)
                .statsInterval(0, TimeUnit.SECONDS).build();
        consumer = client.newConsumer().topic("bench-input").subscriptionName("bench")
                .subscriptionType(SubscriptionType.Exclusive)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        input = client.newProducer().topic("bench-input").enableBatching(true).blockIfQueueFull(true).create();
        output = client.newProducer().topic("bench-output").enableBatching(false).create();
        batched = client.newProducer().topic("bench-batched").enableBatching(true)
                .batchingMaxMessages(BATCH).batchingMaxPublishDelay(1, TimeUnit.MILLISECONDS).create();
        payload = new byte[size];
    }

    private Transaction begin() throws Exception {
        return client.newTransaction().withTransactionTimeout(5, TimeUnit.MINUTES).build().get();
    }

    private void runEmpty(int count) throws Exception {
        for (int i = 0; i < count; i++) {
            begin().commit().get();
        }
    }

    private void runPairs(int count) throws Exception {
        for (int i = 0; i < count; i++) {
            Message<byte[]> message = consumer.receive();
            Transaction transaction = begin();
            CompletableFuture<MessageId> sent = output.newMessage(transaction).value(payload).sendAsync();
            CompletableFuture<Void> acknowledged =
                    consumer.acknowledgeAsync(message.getMessageId(), transaction);
            sent.get();
            acknowledged.get();
            transaction.commit().get();
        }
    }

    private void runBatches(int count) throws Exception {
        for (int i = 0; i < count; i++) {
            Transaction transaction = begin();
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int j = 0; j < BATCH; j++) {
                sent.add(batched.newMessage(transaction).value(payload).sendAsync());
            }
            CompletableFuture.allOf(sent.toArray(new CompletableFuture[0])).get();
            transaction.commit().get();
        }
    }

    private void fill(int count) throws Exception {
        CompletableFuture<MessageId> last = null;
        for (int i = 0; i < count; i++) {
            last = input.sendAsync(payload);
        }
        input.flush();
        last.get();
    }

    public static void main(String[] arguments) throws Exception {
        TransactionBench bench = new TransactionBench(arguments[0], Integer.parseInt(arguments[1]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        String line;
        while ((line = lines.readLine()) != null) {
            String[] words = line.split(" ");
            int count = Integer.parseInt(words[1]);
            if (words[0].equals("pair")) {
                bench.fill(count);
            }
            long begun = System.nanoTime();
            switch (words[0]) {
                case "empty":
                    bench.runEmpty(count);
                    break;
                case "pair":
                    bench.runPairs(count);
                    break;
                case "batch":
                    bench.runBatches(count);
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
            System.out.println((System.nanoTime() - begun) / 1e9);
        }
        System.exit(0);
    }
}
