// Prints the subject of each certificate of its arguments, as Kafka's principals have it.
import java.io.FileInputStream;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;

public class Subjects {
    public static void main(String[] args) throws Exception {
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        java.io.PrintStream out = new java.io.PrintStream(System.out, true, "UTF-8");
        for (String path : args) {
            try (FileInputStream in = new FileInputStream(path)) {
                X509Certificate certificate = (X509Certificate) factory.generateCertificate(in);
                out.println(certificate.getSubjectX500Principal().getName().replace("\r", "\\r"));
            }
        }
    }
}
