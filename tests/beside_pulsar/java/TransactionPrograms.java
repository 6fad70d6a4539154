import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TopicMessageId;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Runs programs of transactions with the client of Pulsar; tests/beside_pulsar/transaction_programs.py says
 * what the lines mean.
 *
 * <p>Arguments: URL of the broker, prefix of the topics, file of the programs, file for the results, how many run
 * at a time, and how many milliseconds nothing has to come until all has come.
 */
public final class TransactionPrograms {
    private static final int TOPICS = 3;
    private static final int SUBSCRIPTIONS = 2;
    private static final long SHORT_MS = 8_000;
    private static final long LATE_MS = 1_500;
    private static final long BATCH_MS = 200;

    private final PulsarClient client;
    private final String prefix;
    private final long quietMs;
    private final SubscriptionType[] types;
    private final List<Producer<String>> single = new ArrayList<>();
    private final List<Producer<String>> batched = new ArrayList<>();
    private final Map<String, Consumer<String>> consumers = new LinkedHashMap<>();
    private final Map<String, Map<String, Message<String>>> received = new HashMap<>();
    private final List<Map<String, MessageId>> ids = new ArrayList<>();
    private final Map<String, Transaction> transactions = new HashMap<>();
    private final Map<String, Long> begun = new HashMap<>();

    private TransactionPrograms(PulsarClient client, String prefix, long quietMs, String[] types) throws Exception {
        this.client = client;
        this.prefix = prefix;
        this.quietMs = quietMs;
        this.types = new SubscriptionType[SUBSCRIPTIONS];
        for (int s = 0; s < SUBSCRIPTIONS; s++) {
            this.types[s] = SubscriptionType.valueOf(types[s]);
        }
        for (int t = 0; t < TOPICS; t++) {
            ids.add(new HashMap<>());
            for (int s = 0; s < SUBSCRIPTIONS; s++) {
                subscribe(s, t);
            }
            single.add(client.newProducer(Schema.STRING).topic(topic(t))
                    .enableBatching(false).create());
            batched.add(client.newProducer(Schema.STRING).topic(topic(t))
                    .enableBatching(true).batchingMaxPublishDelay(BATCH_MS, TimeUnit.MILLISECONDS)
                    .batchingMaxMessages(1000).create());
        }
        // What is sent before the transaction buffer of a new topic is ready may stay invisible.
        for (int t = 0; t < TOPICS; t++) {
            consumers.get(place(0, t)).getLastMessageIds();
        }
        Thread.sleep(quietMs);
    }

    private String topic(int t) {
        return prefix + "-" + t;
    }

    private static String place(int s, int t) {
        return s + "/" + t;
    }

    private void subscribe(int s, int t) throws Exception {
        Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(topic(t))
                .subscriptionName("s" + s).subscriptionType(types[s])
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .enableBatchIndexAcknowledgment(true).isAckReceiptEnabled(true)
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).subscribe();
        consumers.put(place(s, t), consumer);
        received.put(place(s, t), new HashMap<>());
    }

    private interface Step {
        Object run() throws Exception;
    }

    /** "ok", or the class of what it raised. */
    private static String outcome(Step step) {
        try {
            step.run();
            return "ok";
        } catch (Throwable raised) {
            Throwable cause = raised;
            while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                    && cause.getCause() != null) {
                cause = cause.getCause();
            }
            if (cause.getClass() == PulsarClientException.class
                    && cause.getCause() != null) {
                cause = cause.getCause();
            }
            return cause.getClass().getSimpleName();
        }
    }

    private Object run(String line) throws Exception {
        String[] words = line.split(" ");
        switch (words[0]) {
            case "begin":
                boolean isShort = words.length > 2;
                transactions.put(words[1], client.newTransaction()
                        .withTransactionTimeout(isShort ? SHORT_MS : 600_000, TimeUnit.MILLISECONDS).build().get());
                begun.put(words[1], System.currentTimeMillis());
                return "ok";
            case "send":
                return send(Integer.parseInt(words[1]), transactions.get(words[2]), Integer.parseInt(words[3]),
                        Integer.parseInt(words[4]));
            case "ack":
            case "cumulative":
                return acknowledge(words);
            case "commit":
                return end(transactions.get(words[1]), true);
            case "abort":
                return end(transactions.get(words[1]), false);
            case "expire":
                long late = begun.get(words[1]) + SHORT_MS + LATE_MS;
                Thread.sleep(Math.max(0, late - System.currentTimeMillis()));
                return transactions.get(words[1]).getState().name();
            case "drain":
                return drain();
            case "redeliver":
                consumers.get(place(Integer.parseInt(words[1]), Integer.parseInt(words[2])))
                        .redeliverUnacknowledgedMessages();
                return "ok";
            case "reconnect":
                int s = Integer.parseInt(words[1]);
                int t = Integer.parseInt(words[2]);
                consumers.get(place(s, t)).close();
                subscribe(s, t);
                return "ok";
            case "last":
                return last(Integer.parseInt(words[1]));
            default:
                throw new IllegalArgumentException(line);
        }
    }

    private String send(int t, Transaction transaction, int first, int count) {
        return outcome(() -> {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            Producer<String> producer = (count == 1 ? single : batched).get(t);
            for (int i = first; i < first + count; i++) {
                sent.add((transaction == null ? producer.newMessage() : producer.newMessage(transaction))
                        .value("m" + i).sendAsync());
            }
            // Not flushed: a message of a transaction joins the batch once the coordinator has the topic.
            List<Long> entries = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                MessageId id = sent.get(i).get();
                ids.get(t).put("m" + (first + i), id);
                entries.add(((MessageIdAdv) id).getEntryId());
            }
            if (entries.stream().distinct().count() > 1) {
                throw new IllegalStateException("the machine was too slow to make one batch");
            }
            return null;
        });
    }

    private String acknowledge(String[] words) {
        int s = Integer.parseInt(words[1]);
        int t = Integer.parseInt(words[2]);
        Transaction transaction = transactions.get(words[3]);
        Consumer<String> consumer = consumers.get(place(s, t));
        Message<String> message = received.get(place(s, t)).get(words[4]);
        if (message == null) {
            return "absent";
        }
        MessageId id = message.getMessageId();
        if (words[0].equals("ack")) {
            return outcome(() -> (transaction == null ? consumer.acknowledgeAsync(id)
                    : consumer.acknowledgeAsync(id, transaction)).get());
        }
        return outcome(() -> (transaction == null ? consumer.acknowledgeCumulativeAsync(id)
                : consumer.acknowledgeCumulativeAsync(id, transaction)).get());
    }

    private static String end(Transaction transaction, boolean commits) {
        String found = outcome(() -> (commits ? transaction.commit() : transaction.abort()).get());
        return found + " " + transaction.getState().name();
    }

    /** All that comes, at each consumer and at a reader of each topic. */
    private Map<String, List<String>> drain() throws Exception {
        Map<String, List<String>> found = new LinkedHashMap<>();
        List<Reader<String>> readers = new ArrayList<>();
        for (int t = 0; t < TOPICS; t++) {
            readers.add(client.newReader(Schema.STRING).topic(topic(t))
                    .startMessageId(MessageId.earliest).create());
        }
        boolean hasMoved = true;
        while (hasMoved) {
            hasMoved = false;
            Thread.sleep(quietMs);
            for (Map.Entry<String, Consumer<String>> entry : consumers.entrySet()) {
                Message<String> message;
                while ((message = entry.getValue().receive(1, TimeUnit.MILLISECONDS)) != null) {
                    hasMoved = true;
                    received.get(entry.getKey()).put(message.getValue(), message);
                    found.computeIfAbsent(entry.getKey(), key -> new ArrayList<>()).add(message.getValue());
                }
            }
            for (int t = 0; t < TOPICS; t++) {
                Message<String> message;
                while ((message = readers.get(t).readNext(1, TimeUnit.MILLISECONDS)) != null) {
                    hasMoved = true;
                    found.computeIfAbsent("r/" + t, key -> new ArrayList<>()).add(message.getValue());
                }
            }
        }
        for (Reader<String> reader : readers) {
            reader.close();
        }
        return found;
    }

    private String last(int t) {
        List<String> found = new ArrayList<>();
        String failure = outcome(() -> {
            List<TopicMessageId> last = consumers.get(place(0, t)).getLastMessageIds();
            MessageId id = last.get(0);
            String name = ((MessageIdAdv) id).getEntryId() < 0 ? "none" : "other";
            for (Map.Entry<String, MessageId> sent : ids.get(t).entrySet()) {
                MessageIdAdv one = (MessageIdAdv) sent.getValue();
                MessageIdAdv other = (MessageIdAdv) id;
                if (one.getLedgerId() == other.getLedgerId() && one.getEntryId() == other.getEntryId()
                        && Math.max(one.getBatchIndex(), 0) == Math.max(other.getBatchIndex(), 0)) {
                    name = sent.getKey();
                }
            }
            found.add(name);
            return null;
        });
        return found.isEmpty() ? failure : found.get(0);
    }

    private void close() throws Exception {
        for (Consumer<String> consumer : consumers.values()) {
            consumer.close();
        }
        for (int t = 0; t < TOPICS; t++) {
            single.get(t).close();
            batched.get(t).close();
        }
    }

    private static String json(Object value) {
        if (value instanceof Map) {
            List<String> parts = new ArrayList<>();
            for (Map.Entry<?, ?> entry : new java.util.TreeMap<>((Map<?, ?>) value).entrySet()) {
                parts.add("\"" + entry.getKey() + "\": \"" + String.join(" ", (List<String>) entry.getValue()) + "\"");
            }
            return "{" + String.join(", ", parts) + "}";
        }
        return "\"" + value + "\"";
    }

    public static void main(String[] arguments) throws Exception {
        String text = Files.readString(Path.of(arguments[2]), StandardCharsets.UTF_8);
        String[] programs = text.strip().split("\n\n");
        String[] results = new String[programs.length];
        ExecutorService pool = Executors.newFixedThreadPool(Integer.parseInt(arguments[4]));
        long quietMs = Long.parseLong(arguments[5]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true)
                .ioThreads(2).statsInterval(0, TimeUnit.SECONDS).build()) {
            List<CompletableFuture<Void>> running = new ArrayList<>();
            for (int number = 0; number < programs.length; number++) {
                int index = number;
                running.add(CompletableFuture.runAsync(() -> {
                    List<String> lines = List.of(programs[index].split("\n"));
                    List<String> found = new ArrayList<>();
                    try {
                        String[] types = lines.get(0).split(" ");
                        TransactionPrograms program =
                                new TransactionPrograms(client, arguments[1] + index, quietMs, types);
                        for (String line : lines.subList(1, lines.size())) {
                            found.add(json(program.run(line)));
                        }
                        program.close();
                    } catch (Throwable failure) {
                        failure.printStackTrace();
                        found = Collections.singletonList(json("failed: " + failure.getClass().getName()));
                    }
                    results[index] = "[" + String.join(", ", found) + "]";
                }, pool));
            }
            for (CompletableFuture<Void> one : running) {
                one.get();
            }
        }
        pool.shutdown();
        try (PrintStream out = new PrintStream(arguments[3], StandardCharsets.UTF_8)) {
            for (String result : results) {
                out.println(result);
            }
        }
        System.exit(0);
    }
}
