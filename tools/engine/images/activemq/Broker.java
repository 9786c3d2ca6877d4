import org.apache.activemq.broker.BrokerService;

/** The image's own is told by XML, through Spring. */
class Broker {
    public static void main(String[] none) throws Exception {
        BrokerService broker = new BrokerService();
        broker.setUseJmx(false);
        broker.setDataDirectory("data");
        broker.addConnector("stomp://0.0.0.0:61613");
        broker.start();
        broker.waitUntilStopped();
    }
}
