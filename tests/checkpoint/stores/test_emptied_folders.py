from closeranks.checkpoint.stores.directory import DirectoryStore


def test_a_writer_goes_on_after_another_process_took_all_empty_folders_away(tmp_path):
    writer, sweeper = DirectoryStore(tmp_path), DirectoryStore(tmp_path)
    writer.write("data/first/w00000.safetensors", [memoryview(b"abc")])
    sweeper.delete(["data/first/w00000.safetensors"])
    assert not (tmp_path / "data").exists()
    writer.write("data/second/w00000.safetensors", [memoryview(b"abc")])
    sweeper.delete(["data/second/w00000.safetensors"])
    assert writer.create("data/third/w00000.json", b"{}")
