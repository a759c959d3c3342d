import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.inmemory.InMemoryCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/** A REST catalog on loopback: the server of Iceberg's own tests. Arguments: the port, and a URI for new tables. */
public class IcebergCatalog {
    public static void main(String[] arguments) throws Exception {
        InMemoryCatalog catalog = new InMemoryCatalog();
        catalog.initialize("korvet", Map.of("warehouse", arguments[1]));
        // The catalog keeps names in memory. It would keep the tables' metadata there, too, which clients write as files.
        Field files = InMemoryCatalog.class.getDeclaredField("io");
        files.setAccessible(true);
        files.set(catalog, new HadoopFileIO(new Configuration()));

        ServletContextHandler context = new ServletContextHandler();
        context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        Server server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
        server.setHandler(context);
        server.start();
        server.join();
    }
}
