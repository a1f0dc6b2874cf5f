import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.SqlFilter;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * RocketMQ's own SQL92 filter as a judge: {"do": "judge", "asked": [{"sql": text, "messages": [properties...]}...]} is answered by
 * a list with a text for each expression: T, F, U (unknown) or E (error) for each message, or null if it was refused.
 */
public class SqlOracle {
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        System.setOut(System.err); // the parser of RocketMQ prints
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONArray verdicts = new JSONArray();
            for (Object each : JSON.parseObject(line).getJSONArray("asked")) {
                verdicts.add(judge((JSONObject) each));
            }
            JSONObject answer = new JSONObject();
            answer.put("ok", verdicts);
            answers.println(JSON.toJSONString(answer, com.alibaba.fastjson.serializer.SerializerFeature.WriteMapNullValue));
        }
    }

    private static String judge(JSONObject asked) {
        Expression compiled;
        try {
            compiled = new SqlFilter().compile(asked.getString("sql"));
        } catch (Throwable refused) {
            return null;
        }
        StringBuilder verdicts = new StringBuilder();
        for (Object message : asked.getJSONArray("messages")) {
            Map<String, Object> properties = new HashMap<>((JSONObject) message);
            try {
                Object value = compiled.evaluate(new EvaluationContext() {
                    @Override
                    public Object get(String name) {
                        return properties.get(name);
                    }

                    @Override
                    public Map<String, Object> keyValues() {
                        return properties;
                    }
                });
                verdicts.append(value == null ? 'U' : (Boolean) value ? 'T' : 'F');
            } catch (Throwable error) {
                verdicts.append('E');
            }
        }
        return verdicts.toString();
    }
}
