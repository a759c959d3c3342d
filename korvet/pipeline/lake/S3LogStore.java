package io.delta.storage;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on S3, in which one of several drivers writes a commit.
 *
 * S3 refuses a commit whose name exists (If-None-Match). Delta's own store for S3 looks for the name before it writes,
 * so a second driver overwrites what the first one wrote meanwhile.
 */
public class KorvetS3LogStore extends S3SingleDriverLogStore {
    private static final String ONLY_NEW = "fs.option.create.conditional.overwrite";
    private boolean isRefused;

    public KorvetS3LogStore(Configuration conf) {
        super(conf);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration conf) throws IOException {
        if (overwrite.booleanValue()) {
            super.write(path, actions, overwrite, conf);
            return;
        }
        FileSystem files = path.getFileSystem(conf);
        if (!isRefused) {
            checkStore(files, path.getParent());
            isRefused = true;
        }
        StringBuilder text = new StringBuilder();
        while (actions.hasNext()) {
            text.append((String) actions.next()).append('\n');
        }
        create(files, path, text.toString());
    }

    /** Throws IOException if the store takes a second object of one name. */
    private static void checkStore(FileSystem files, Path directory) throws IOException {
        Path path = new Path(directory, "_korvet_" + UUID.randomUUID());
        create(files, path, "");
        try {
            create(files, path, "");
        } catch (FileAlreadyExistsException expected) {
            return;
        } finally {
            files.delete(path, false);
        }
        throw new IOException("the object store of " + directory + " does not support conditional writes");
    }

    private static void create(FileSystem files, Path path, String text) throws IOException {
        FSDataOutputStream out = (FSDataOutputStream) files.createFile(path).create().must(ONLY_NEW, true).build();
        out.write(text.getBytes(StandardCharsets.UTF_8));
        try {
            out.close();
        } catch (org.apache.hadoop.fs.s3a.RemoteFileChangedException taken) {
            throw new FileAlreadyExistsException(path.toString());
        }
    }
}
